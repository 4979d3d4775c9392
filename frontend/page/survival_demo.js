'use strict';
// A stream to look at while its worker is killed: where it went on, how long that took, and that the text
// is the one that it would have been.

const DEMO_MESSAGES = [{ role: 'user', content: 'Tell me a long story about a dragon and a lighthouse.' }];
const DEMO_ROUND_S = 15; // so long a round is to take, if the context is long enough
const DEMO_TOKENS = 300; // of the first round, and the least of one
const GAP_SEARCH_MS = 15_000; // the gap of a hand-over lies so far back at most

class DemoRound {
  constructor(model, maxTokens, seed) {
    this.model = model;
    this.maxTokens = maxTokens;
    this.seed = seed;
    this.rid = null;
    this.text = '';
    this.arrivals = []; // {at, length}: when the text had become so long
    this.moves = []; // {length, ms, from, to, left}
    this.numTokens = 0;
  }

  get body() {
    const params = { stream: true, seed: this.seed, temperature: 0.8, ignore_eos: true };
    return { model: this.model, messages: DEMO_MESSAGES, max_tokens: this.maxTokens, ...params };
  }

  take(chunk, eventId) {
    const text = chunk.choices?.[0]?.delta?.content;
    this.numTokens = Math.max(this.numTokens, positionOf(eventId));
    if (!text) return;
    this.text += text;
    this.arrivals.push({ at: performance.now(), length: this.text.length });
  }

  /** Tokens that a round as fast as this one makes in its time. */
  get tokensOfNext() {
    const [first, last] = [this.arrivals[0], this.arrivals.at(-1)];
    const elapsedS = first ? (last.at - first.at) / 1000 : 0;
    return elapsedS > 0 ? Math.max(DEMO_TOKENS, Math.round((DEMO_ROUND_S * this.numTokens) / elapsedS)) : DEMO_TOKENS;
  }

  /** The longest time without text, of late: [ms, length of the text before it]. */
  longestGap() {
    let longest = [0, this.text.length];
    const since = performance.now() - GAP_SEARCH_MS;
    for (let idx = 1; idx < this.arrivals.length; idx += 1) {
      const [before, after] = [this.arrivals[idx - 1], this.arrivals[idx]];
      if (after.at > since && after.at - before.at > longest[0]) longest = [after.at - before.at, before.length];
    }
    return longest;
  }
}

class SurvivalDemo {
  constructor(api, orders) {
    this.api = api;
    this.orders = orders;
    this.round = null;
    this.stream = null;
    this.seed = 1;
    this.view = el('div', { class: 'cl-demo-text', tabindex: 0, role: 'log', 'aria-live': 'off', 'aria-label': 'The stream' });
    this.status = el('p', { class: 'cl-demo-status', role: 'status' });
    this.startButton = el('button', { id: 'demo-start', class: 'primary', onclick: () => (this.stream ? this.#stop() : this.#start()) }, 'Start a stream');
    this.killButton = el('button', { id: 'demo-kill', class: 'cl-kill', hidden: true, onclick: () => this.#kill() }, 'Kill its worker');
    this.hint = el('p', { class: 'cl-hint' });
    this.root = el(
      'section',
      { class: 'cl-card cl-demo', 'aria-label': 'A stream that survives' },
      el('header', {}, el('h2', {}, 'Watch a stream survive'), el('span', { class: 'cl-demo-buttons' }, this.killButton, this.startButton)),
      this.hint,
      this.view,
      this.status,
    );
    this.view.hidden = true;
  }

  /** The document has changed: perhaps somebody else runs the stream now. */
  show(cluster) {
    this.cluster = cluster;
    const canKill = Boolean(cluster.admin_url);
    this.hint.textContent = canKill
      ? 'Start a stream, then kill the worker that runs it: another one continues after the last token.'
      : 'To kill or drain workers from here, start with: jetflock serve --workers 2 --admin-port 8001 --admin-key-file FILE';
    this.killButton.hidden = !canKill || !this.stream || !this.worker || this.isKilling;
    if (this.worker) this.killButton.textContent = `Kill ${workerLabel(this.worker)}`;
    this.#noteMoves();
    this.#showStatus();
  }

  get hops() {
    return this.cluster?.requests[this.round?.rid]?.paths[0] ?? [];
  }

  get worker() {
    return this.hops.at(-1)?.worker ?? null;
  }

  hide() {
    this.#stop();
  }

  async #start() {
    const [model, card] = Object.entries(this.cluster.models)[0] ?? [];
    if (!model) return toast('No model is served yet.');
    this.startButton.textContent = 'Stop';
    this.isStopped = false;
    this.verdict = '';
    try {
      do {
        const wanted = this.round?.tokensOfNext ?? DEMO_TOKENS;
        this.round = new DemoRound(model, Math.min(wanted, card.max_context_len - 100), this.seed++);
        this.#showText();
        await this.#follow(this.round, () => this.#showText());
        if (this.isKilling) await this.#untilMoved(this.round);
        this.isKilling = false; // it was too late for this round
      } while (!this.isStopped && !this.round.moves.length);
      if (!this.isStopped) await this.#compare();
    } catch (error) {
      if (!this.isStopped) this.verdict = `The stream ended with an error: ${error.message}`;
    }
    this.stream = null;
    this.isKilling = false;
    this.startButton.textContent = 'Start a stream';
    this.show(this.cluster);
  }

  #stop() {
    this.isStopped = true;
    this.stream?.stop();
  }

  async #follow(round, onText) {
    const restart = () => Object.assign(round, { text: '', arrivals: [] });
    this.stream = new AnswerStream(this.api, {
      onAccepted: (rid) => (round.rid = rid),
      onEvent: (chunk, eventId) => {
        round.take(chunk, eventId);
        onText(round);
      },
      onSilence: () => {},
      onCut: () => {},
      onResumed: () => {},
      onRestart: restart,
    });
    await this.stream.start('v1/chat/completions', round.body);
  }

  /** A worker was told to die, perhaps the one that runs the stream. */
  noteKilled() {
    this.isKilling = this.stream !== null;
    this.show(this.cluster);
  }

  async #kill() {
    this.killButton.hidden = true;
    await this.orders.give('kill', () => this.#workerNow());
    this.show(this.cluster);
  }

  /** What the document tells is a second old: the stream may have moved, or another round have begun. */
  async #workerNow() {
    for (let tries = 0; tries < 50 && this.stream; tries += 1) {
      const { rid } = this.round;
      const hops = rid ? (await this.api.json(`v1/streams/${rid}/path`)).paths[0] : [];
      if (hops.length) return hops.at(-1).worker;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    throw new Error('nobody runs this stream');
  }

  /** The same request with the same seed, left in peace: has it the same text? */
  async #compare() {
    const disturbed = this.round;
    const again = new DemoRound(disturbed.model, disturbed.maxTokens, disturbed.seed);
    this.verdict = 'Running the same request again, undisturbed, to compare …';
    this.#showStatus();
    await this.#follow(again, () => {});
    const isSame = again.text === disturbed.text;
    this.verdict = isSame
      ? `Nothing lost, nothing repeated: the ${disturbed.text.length.toLocaleString()} characters match an undisturbed run.`
      : 'From some point on, an undisturbed run differs: on this hardware, rounding depends on the batch.';
    this.root.dataset.verdict = isSame ? 'same' : 'different';
    this.#showMove();
  }

  /** What the document tells is a second old: the stream may be over before its path is known. */
  async #untilMoved(round) {
    for (let tries = 0; tries < 50 && !round.moves.length; tries += 1) {
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  #noteMoves() {
    const { round, hops } = this;
    if (!round || hops.length - 1 <= round.moves.length) return;
    const [ms, length] = round.longestGap();
    for (let place = round.moves.length; place < hops.length - 1; place += 1) {
      round.moves.push({ ms, length, from: hops[place].worker, to: hops[place + 1].worker, left: hops[place].left });
    }
    this.#showText();
  }

  #showText() {
    const { round } = this;
    this.view.hidden = false;
    const isAtEnd = this.view.scrollTop + this.view.clientHeight > this.view.scrollHeight - 40;
    if (!round.moves.length && this.view.childNodes.length === 1 && this.view.firstChild.nodeType === Node.TEXT_NODE) {
      this.view.firstChild.data = round.text;
    } else {
      this.view.replaceChildren(...this.#pieces());
    }
    if (isAtEnd) this.view.scrollTop = this.view.scrollHeight;
  }

  /** Scrolls to where it went on. */
  #showMove() {
    const mark = this.view.querySelector('.cl-move');
    if (mark) this.view.scrollTop += mark.getBoundingClientRect().top - this.view.getBoundingClientRect().top - this.view.clientHeight / 2;
  }

  #pieces() {
    const { text, moves } = this.round;
    const pieces = [];
    let start = 0;
    for (const { length, ms, from, to, left } of moves) {
      const why = `${workerLabel(from)}: ${LEFT_BECAUSE[left] ?? 'left'}; ${workerLabel(to)} goes on after ${Math.round(ms)} ms`;
      pieces.push(document.createTextNode(text.slice(start, length)), el('mark', { class: 'cl-move' }, why));
      start = length;
    }
    return [...pieces, document.createTextNode(text.slice(start))];
  }

  #showStatus() {
    const { round } = this;
    if (!round) return;
    const parts = [];
    const workers = round.moves.length ? [round.moves[0].from, ...round.moves.map(({ to }) => to)] : this.hops.map(({ worker }) => worker);
    if (workers.length) parts.push(workers.map(workerLabel).join(' → '));
    if (round.numTokens) parts.push(`${round.numTokens.toLocaleString()} tokens`);
    if (round.moves.length) parts.push(`gap ${Math.round(round.moves.at(-1).ms)} ms`);
    if (this.isKilling && !round.moves.length) parts.push('its worker was killed; waiting for another …');
    this.status.replaceChildren(el('span', {}, parts.join(' · ')), this.verdict ? el('strong', {}, this.verdict) : '');
  }
}
