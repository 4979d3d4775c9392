"""What a frontend is configured with."""

# No `from __future__ import annotations` here: the types of the fields are read at run time.

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from frontend.limits.work_limits import (
    AudioLimits,
    BatchLimits,
    FetchPolicy,
    ImageLimits,
    KeptRequests,
    VideoLimits,
)
from frontend.parsers.plug_in import check_choices
from frontend.parsers.reasoning import ReasoningParserName
from frontend.parsers.tool_parsers import ToolParserName
from frontend.tenants.auth import ApiKey
from frontend.tenants.caller_gate import NatsCallers
from frontend.tenants.key_file import read_key_file
from frontend.tenants.public_prefix_file import DeclaredPrefix, read_prefix_file
from shared.config import ClusterConfig
from shared.errors import ConfigError
from shared.nats_login import NatsLogin, read_secret
from shared.status.http_host import HostRule
from shared.status.http_origin import origin_of

ROLE = "frontend"


@dataclass(frozen=True, kw_only=True)
class FrontendConfig(ClusterConfig):
    """Flags of `python -m frontend`; each is also an environment variable and a YAML key."""

    nats_role: ClassVar[str] = "frontend"
    help_group: ClassVar[str] = "Frontend"

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 picks a free one."""
    api_key: tuple[str, ...] = ()
    """Keys that clients may use; none means open to all."""
    api_key_file: Path | None = None
    """File with one key a line."""
    api_keys_file: Path | None = None
    """YAML or JSON file with keys, their holders' names and limits; read again when it changes."""
    shared_prefix_models: tuple[str, ...] = ()
    """Models whose cached prefixes all tenants share, and so can find out what others ask; '*' for
    all models. Without it each tenant has its own, or shares by cache_group of the keys file."""
    shared_prefixes: Path | None = None
    """YAML or JSON file with texts, or first messages of chats, that are no tenant's secret: what
    begins with one shares the cached keys and values of just that, whoever asks."""
    queue_max_interactive: int = 8000
    """Interactive requests of a model that may wait or run, in the queue or in line before it;
    beyond it clients get 429."""
    queue_max_batch: int = 4000
    """The same for batch requests, which use at most half of the queue."""
    service_name: str = "jetflock"
    """Name of the NATS micro service and first token of its subjects; empty switches it off."""
    nats_callers: NatsCallers = "anyone"
    """Who calls the NATS service: anyone who can publish; users of this server, each below a name
    of its own, as `jetflock nats-users` makes them; or accounts that import the service."""
    nats_service_user: str | None = None
    """User that hears and answers callers over NATS, and may do nothing else; by default the one of
    --nats-user."""
    nats_service_password: str | None = None
    """Its password."""
    nats_service_password_file: Path | None = None
    """File that holds it."""
    nats_service_nkey_file: Path | None = None
    """File that holds its nkey seed."""
    nats_service_creds: Path | None = None
    """Its credentials file."""
    nats_eraser_user: str | None = None
    """User that deletes for the frontend, and writes objects, which can do the same; it hears
    nobody. By default the one of --nats-user."""
    nats_eraser_password: str | None = None
    """Its password."""
    nats_eraser_password_file: Path | None = None
    """File that holds it."""
    nats_eraser_nkey_file: Path | None = None
    """File that holds its nkey seed."""
    nats_eraser_creds: Path | None = None
    """Its credentials file."""
    generation_config: Literal["auto", "none"] = "auto"
    """auto: the model's generation_config.json supplies sampling defaults; none: it does not."""
    unknown_fields: Literal["tell", "refuse"] = "tell"
    """Fields of a body that nobody knows. tell: they have no effect, a header of the answer names
    them; refuse: 400, with the nearest name that is known."""
    tool_parser: ToolParserName = "auto"
    """How models write tool calls; auto: as their chat templates say; FILE.py: by a class of your
    own."""
    reasoning_parser: ReasoningParserName = "auto"
    """How models set reasoning apart; auto: as their chat templates say; none: not at all; FILE.py:
    by a class of your own."""
    default_deadline_s: float = 600.0
    """Time a request may wait and run when its client names none."""
    queue_timeout_s: float = 0.0
    """Longest time a request may wait until a worker claims it; 0: as long as its deadline."""
    max_resume_grace_s: float = 300.0
    """Longest X-Resume-Grace: how long a request runs on without its client."""
    max_body_bytes: int = 32 << 20
    """Largest request body."""
    max_file_bytes: int = 100 << 20
    """Largest file that may be uploaded."""
    batch_max_lines: int = 50_000
    """Requests that one batch may have."""
    batch_max_in_flight: int = 16
    """Requests of batches that a frontend has in the queue at a time; keep it below the slots
    (--max-running) of all workers, so that interactive requests find free ones."""
    max_response_bytes: int = 512 << 10
    """Largest conversation of a kept response; longer ones are served with "store": false."""
    keep_requests: KeptRequests = "asked"
    """Requests that are kept beside responses (--response-store-bytes, --response-ttl-s), so that
    they can be forked, run again and compared when they are over. asked: those with "store": true;
    all: each that has room."""
    keep_share: float = 1.0
    """With --keep-requests all: this share of them, of 0 to 1, drawn by their ids, so that all
    frontends and `jetflock shadow` choose the same."""
    max_images: int = 8
    """Images that one request may have."""
    max_image_bytes: int = 10 << 20
    """Largest image, as it comes."""
    max_image_pixels: int = 40_000_000
    """Largest image, decoded: width times height."""
    max_image_tokens: int = 2048
    """Most tokens of an image, where a model sees larger ones as more: it is scaled to them."""
    max_audio_bytes: int = 25 << 20
    """Largest file of audio, as it comes."""
    max_audio_s: float = 1800.0
    """Longest audio, all of a request together."""
    max_audios: int = 8
    """Files of audio that one chat may have."""
    max_videos: int = 2
    """Videos that one request may have."""
    max_video_bytes: int = 24 << 20
    """Largest video, as it comes."""
    max_video_frames: int = 256
    """Most frames of a video that are read."""
    max_video_tokens: int = 8192
    """Most tokens of a video: its frames are scaled to them."""
    fetch_images: bool = True
    """Fetch images and videos by https: URLs for clients; else only data: URLs are taken."""
    allow_http_images: bool = False
    """Fetch them by http: URLs as well."""
    allowed_media_domains: tuple[str, ...] = ()
    """Domains, with those below them, that they may be fetched from; none: any public host."""
    image_timeout_s: float = 10.0
    """Time that fetching one may take."""
    orphan_wait_s: float = 30.0
    """Time clients of a dead frontend have to resume elsewhere before their requests are ended."""
    shutdown_timeout_s: float = 5.0
    """Time that running streams get to finish after SIGTERM."""
    ping_interval_s: float = 15.0
    """Silence of a stream after which an SSE comment is sent."""
    cors_origins: tuple[str, ...] = ()
    """Origins that browsers may call from; '*' for all."""
    admin_url: str = ""
    """Where browsers find `jetflock admin serve`: to it the page sends orders, with its key."""
    frontend_id: str | None = None
    """Id of this process; random when not given. Never use one twice."""

    def api_keys(self) -> list[ApiKey]:
        """The keys from the flag and the files; none: all are let in. Raises ConfigError."""
        keys = set(self.api_key)
        if self.api_key_file is not None:
            lines = read_secret(self.api_key_file).splitlines()
            from_file = {line.strip() for line in lines if line.strip()}
            if not from_file:
                raise ConfigError(f"{self.api_key_file} holds no API key; put one on each line")
            keys |= from_file
        named = read_key_file(self.api_keys_file) if self.api_keys_file is not None else []
        digests = {key.digest for key in named}
        nameless = [ApiKey.without_limits(key) for key in sorted(keys)]
        # A key that stands in both has its limits.
        return [*named, *(key for key in nameless if key.digest not in digests)]

    def check_keeping(self) -> None:
        """Raises ConfigError."""
        if not 0 <= self.keep_share <= 1:
            raise ConfigError(f"keep_share is {self.keep_share:g}, must be 0 to 1")
        if self.keep_share < 1 and self.keep_requests != "all":
            raise ConfigError(
                f"keep_share is {self.keep_share:g}, and keep_requests {self.keep_requests!r}: a "
                "share is of all"
            )

    def check_parsers(self) -> None:
        """Whether there are the parsers that were chosen. Raises ConfigError."""
        check_choices(self.tool_parser, self.reasoning_parser)

    def declared_prefixes(self) -> tuple[DeclaredPrefix, ...]:
        """The prefixes of `--shared-prefixes`. Raises ConfigError."""
        return () if self.shared_prefixes is None else read_prefix_file(self.shared_prefixes)

    def service_login(self) -> NatsLogin:
        """Says as whom to hear and answer callers over NATS. Raises ConfigError."""
        login = NatsLogin(
            self.nats_service_user,
            self.nats_service_password,
            self.nats_service_password_file,
            self.nats_service_nkey_file,
            self.nats_service_creds,
        )
        if not login.is_empty:
            return login
        if self.nats_callers != "anyone":
            raise ConfigError(
                f"nats_callers is {self.nats_callers!r}, and no --nats-service-user (or nkey, or "
                "credentials) is given: with the rights of a frontend, callers would be answered "
                "wherever they say; `jetflock nats-users` makes a user for it"
            )
        return self.login()

    def eraser_login(self) -> NatsLogin | None:
        """Says as whom to purge, delete, and write objects; None: as for all else."""
        login = NatsLogin(
            self.nats_eraser_user,
            self.nats_eraser_password,
            self.nats_eraser_password_file,
            self.nats_eraser_nkey_file,
            self.nats_eraser_creds,
        )
        return None if login.is_empty else login

    def page_origins(self) -> tuple[str, ...]:
        """That the page may speak to, beside its own. Raises ConfigError."""
        return (origin_of(self.admin_url, "--admin-url"),) if self.admin_url else ()

    def host_rule(self) -> HostRule | None:
        """None where every request needs a key, which no page of another site has."""
        if self.api_key or self.api_key_file or self.api_keys_file:
            return None
        return HostRule.of(self.host, self.allowed_hosts)

    def batch_limits(self) -> BatchLimits:
        """The limits of the batches that this frontend drives."""
        return BatchLimits(
            max_lines=self.batch_max_lines,
            max_line_bytes=self.max_body_bytes,
            max_in_flight=self.batch_max_in_flight,
            deadline_s=self.max_deadline_s,
        )

    def image_limits(self) -> ImageLimits:
        """The limits of the images of a request."""
        return ImageLimits(
            max_images=self.max_images,
            max_bytes=self.max_image_bytes,
            max_pixels=self.max_image_pixels,
            max_tokens=self.max_image_tokens,
        )

    def audio_limits(self) -> AudioLimits:
        """The limits of the audio of a request."""
        return AudioLimits(self.max_audio_bytes, self.max_audio_s, self.max_audios)

    def video_limits(self) -> VideoLimits:
        """The limits of the videos of a request."""
        return VideoLimits(
            max_videos=self.max_videos,
            max_bytes=self.max_video_bytes,
            max_frames=self.max_video_frames,
            max_tokens=self.max_video_tokens,
        )

    def fetch_policy(self) -> FetchPolicy:
        """The rules for images by URL."""
        return FetchPolicy(
            is_on=self.fetch_images,
            allow_http=self.allow_http_images,
            allowed_domains=tuple(name.strip(".").lower() for name in self.allowed_media_domains),
            timeout_s=self.image_timeout_s,
        )

    def queue_limits(self) -> dict[str, int]:
        """Messages that a model may have, by class."""
        return {"interactive": self.queue_max_interactive, "batch": self.queue_max_batch}
