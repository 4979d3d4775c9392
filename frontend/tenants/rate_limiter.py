"""What tenants may still send and generate in this minute, at all frontends together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from frontend.tenants.rate_bucket import RateBucket
from frontend.tenants.tenant import Tenant
from shared.errors import RateLimited
from shared.protocol.notices import TenantUse


@dataclass(slots=True)
class _Account:
    """The account of one tenant. The counts are of this frontend, since all buckets were full."""

    requests: RateBucket | None
    tokens: RateBucket | None
    num_requests: int = 0
    num_tokens: int = 0
    serial: int = 0
    heard: dict[str, TenantUse] = field(default_factory=dict)  # the latest, by frontend

    def resize(self, tenant: Tenant, now: float) -> None:
        """The key file may have changed."""
        self.requests = _resized(self.requests, tenant.requests_per_minute, now)
        self.tokens = _resized(self.tokens, tenant.tokens_per_minute, now)

    def take(self, num_requests: int, num_tokens: int, now: float) -> None:
        if self.requests is not None:
            self.requests.take(num_requests, now)
        if self.tokens is not None:
            self.tokens.take(num_tokens, now)

    def take_here(self, num_requests: int, num_tokens: int, now: float) -> None:
        """The same at this frontend: others will hear of it."""
        if self.is_full(now):
            self.num_requests = self.num_tokens = 0
            self.serial += 1
        self.take(num_requests, num_tokens, now)
        self.num_requests += num_requests
        self.num_tokens += num_tokens

    def hear(self, frontend_id: str, use: TenantUse, now: float) -> None:
        """Take what was taken there since we heard last.

        The counts are totals, so that news which get lost are made up for by the next ones.
        """
        last = self.heard.get(frontend_id)
        if last is None:
            self._meet(use, now)
        else:
            before = last if last.serial == use.serial else TenantUse(use.tenant)
            num_requests = use.num_requests - before.num_requests
            self.take(num_requests, use.num_tokens - before.num_tokens, now)
        self.heard[frontend_id] = use

    def _meet(self, use: TenantUse, now: float) -> None:
        """Take what a frontend that is new here has taken, and know of the debts that it knows."""
        if self.requests is not None and use.request_level is not None:
            self.requests.take_reported(use.num_requests, use.request_level, now)
        if self.tokens is not None and use.token_level is not None:
            self.tokens.take_reported(use.num_tokens, use.token_level, now)

    def believe(self, frontend_id: str, use: TenantUse, now: float) -> None:
        """We know nothing, and that frontend knew what is left."""
        if self.requests is not None and use.request_level is not None:
            self.requests.lower_to(use.request_level, now)
        if self.tokens is not None and use.token_level is not None:
            self.tokens.lower_to(use.token_level, now)
        self.heard[frontend_id] = use

    def is_full(self, now: float) -> bool:
        buckets = (bucket for bucket in (self.requests, self.tokens) if bucket is not None)
        return all(bucket.level(now) >= bucket.per_minute for bucket in buckets)


class RateLimiter:
    """Accounts by tenant's id, of those that have a limit and have come here, or have been charged
    for what they asked elsewhere."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._latest: dict[str, dict[str, TenantUse]] = {}  # by frontend, of all tenants

    def check(self, tenant: Tenant, num_tokens: int | None, now: float) -> None:
        """Whether one more request with so many prompt tokens may come. Raises RateLimited.

        None: it makes none, and may come while others are paid for.
        """
        account = self._account(tenant, now)
        if account is None:
            return
        headers = self.headers(tenant, now)
        if account.requests is not None and (wait_s := account.requests.wait_s(1, now)) > 0:
            raise RateLimited(
                f"Rate limit reached: {tenant.requests_per_minute} requests per minute. "
                f"Try again in {_duration(wait_s)}.",
                wait_s,
                kind="requests",
                headers=headers,
            )
        if num_tokens is None or account.tokens is None:
            return
        if (wait_s := account.tokens.wait_s(num_tokens, now)) > 0:
            raise RateLimited(
                f"Rate limit reached: {tenant.tokens_per_minute} tokens per minute, of which "
                f"{max(0, int(account.tokens.level(now)))} are left; the prompt has {num_tokens}. "
                f"Try again in {_duration(wait_s)}.",
                wait_s,
                kind="tokens",
                headers=headers,
            )

    def take(self, tenant: Tenant, num_requests: int, num_tokens: int, now: float) -> None:
        """Count a request, or give it back with numbers below 0."""
        account = self._account(tenant, now)
        if account is not None:
            account.take_here(num_requests, num_tokens, now)

    def charge(self, tenant: Tenant, num_tokens: int, now: float) -> None:
        """Count tokens that were made for a request that has come before, here or elsewhere.

        All frontends are told of them, so that none needs to tell another: also one to which the
        tenant has not come yet.
        """
        account = self._account(tenant, now)
        if account is not None:
            account.take(0, num_tokens, now)

    def headers(self, tenant: Tenant, now: float) -> dict[str, str]:
        """OpenAI's `x-ratelimit-*`."""
        account = self._account(tenant, now)
        if account is None:
            return {}
        found: dict[str, str] = {}
        for kind, bucket in (("requests", account.requests), ("tokens", account.tokens)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{kind}"] = str(bucket.per_minute)
                found[f"x-ratelimit-remaining-{kind}"] = str(max(0, int(bucket.level(now))))
                full_in_s = bucket.wait_s(bucket.per_minute, now)
                found[f"x-ratelimit-reset-{kind}"] = _duration(full_in_s)
        return found

    def uses(self, now: float) -> dict[str, TenantUse]:
        """The use of all tenants that somebody who starts now should know about."""
        return {
            tenant_id: TenantUse(
                tenant_id,
                serial=account.serial,
                num_requests=account.num_requests,
                num_tokens=account.num_tokens,
                request_level=_level(account.requests, now),
                token_level=_level(account.tokens, now),
            )
            for tenant_id, account in self._accounts.items()
            if not account.is_full(now)
        }

    def hear(self, frontend_id: str, uses: Iterable[TenantUse], now: float) -> None:
        """What another frontend has let in."""
        latest = self._latest[frontend_id] = {use.tenant: use for use in uses}
        for tenant_id, use in latest.items():
            if (account := self._accounts.get(tenant_id)) is not None:
                account.hear(frontend_id, use, now)

    def forget(self, frontend_id: str, now: float) -> None:
        """That frontend is gone; what it has let in stays counted, once, should it come back."""
        self._latest.pop(frontend_id, None)
        for account in self._accounts.values():
            if account.is_full(now):
                account.heard = {f: use for f, use in account.heard.items() if f in self._latest}

    def _account(self, tenant: Tenant, now: float) -> _Account | None:
        if not tenant.has_rate:
            return None
        account = self._accounts.get(tenant.id)
        if account is None:
            account = self._accounts[tenant.id] = _Account(None, None)
            account.resize(tenant, now)
            for frontend_id, latest in self._latest.items():
                if (use := latest.get(tenant.id)) is not None:
                    account.believe(frontend_id, use, now)
        account.resize(tenant, now)
        return account


def _level(bucket: RateBucket | None, now: float) -> float | None:
    return None if bucket is None else bucket.level(now)


def _resized(bucket: RateBucket | None, per_minute: int | None, now: float) -> RateBucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return RateBucket(per_minute, now)
    return bucket if bucket.per_minute == per_minute else bucket.resized(per_minute, now)


def _duration(seconds: float) -> str:
    """The time as OpenAI writes it: 250ms, 12s, 6m0s; rounded up."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60}s"
