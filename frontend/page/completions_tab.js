'use strict';
// The Completions tab: a text goes on, and each token tells how likely it was.

const DEFAULT_MAX_TOKENS = 128;

class CompletionsTab {
  constructor(root, api, store, models, code) {
    this.root = root;
    this.api = api;
    this.store = store;
    this.models = models;
    this.code = code;
    this.stream = null;
    this.numbers = {};
    this.prompt = byId('completion-prompt');
    this.echo = byId('completion-echo');
    this.top = byId('completion-top');
    this.output = byId('completion-output');
    this.foot = byId('completion-foot');
    this.strip = new TokenStrip(byId('completion-tokens'), {
      replace: (index, token) => this.#replace(index, token),
      fork: (index) => this.#fork(index),
    });
    this.controls = new SamplingControls(byId('completion-settings'), 'completion', { withChat: false, onChange: () => this.#keep() });
    models.attach(byId('completion-model'));
    models.watch((defaults) => this.controls.showDefaults({ ...defaults, max_tokens: DEFAULT_MAX_TOKENS }));
    byId('completion-run').addEventListener('click', () => this.#run());
    byId('completion-stop').addEventListener('click', () => this.stream?.stop());
    byId('completion-code').addEventListener('click', () => this.#canSend() && code.open('v1/completions', this.#body()));
    for (const input of [this.prompt, this.echo, this.top]) input.addEventListener('input', () => this.#keep());
    document.addEventListener('keydown', (event) => this.#onKey(event));
    this.#restore();
  }

  show() {
    const run = this.store.read('completion-run', {});
    if (run.rid && !this.stream && !this.numbers.sentAt) this.#reopen(run);
  }

  hide() {}

  #keep() {
    const { prompt, echo, top, controls } = this;
    this.store.write('completion', { prompt: prompt.value, echo: echo.checked, top: top.value, settings: controls.values });
  }

  #restore() {
    const { prompt = 'Once upon a time', echo = false, top = '5', settings = {} } = this.store.read('completion', {});
    this.prompt.value = prompt;
    this.echo.checked = echo;
    this.top.value = top;
    this.controls.values = settings;
  }

  #body() {
    return {
      model: this.models.chosen,
      prompt: this.prompt.value,
      max_tokens: DEFAULT_MAX_TOKENS,
      ...samplingBody(this.controls.values),
      logprobs: Number(this.top.value),
      echo: this.echo.checked,
      store: true, // where the service keeps requests, so that they can be forked when they are over
      stream: true,
      stream_options: { include_usage: true },
    };
  }

  #canSend() {
    const problem = (!this.models.chosen && this.models.problem) || this.controls.findProblem() || (!this.prompt.value && 'Type a text to continue first.');
    if (problem) toast(problem);
    return !problem;
  }

  /** The text goes on with another token at this place. */
  #replace(index, token) {
    const before = this.echo.checked ? '' : this.promptSent;
    this.prompt.value = before + this.strip.textBefore(index) + token;
    this.#keep();
    this.#run();
  }

  #run() {
    if (!this.#canSend()) return;
    this.stream?.stop();
    const body = this.#body();
    this.promptSent = body.prompt;
    this.#follow({ model: body.model }, (stream) => stream.start('v1/completions', body));
  }

  /** A new stream that begins with the tokens before this one. The first one goes on, or is kept. */
  #fork(index) {
    const { rid, model } = this.source;
    const at = index - this.strip.numGiven;
    const body = { at, stream: true, store: true };
    this.#follow({ model, forkOf: this.source, at }, (stream) => stream.start(`v1/streams/${rid}/fork`, body));
  }

  /** A stream that was shown before, from its beginning. */
  #reopen(run) {
    this.#follow(run, (stream) => stream.resume(run.rid, null));
  }

  /** `run`: the model, and of a fork its source and the tokens that it has of that. */
  async #follow(run, start) {
    const { model } = run;
    const answer = { numbers: (this.numbers = {}), finishReason: null, rid: null };
    this.source = run;
    const numbers = new AnswerNumbers(answer.numbers);
    const waiting = new WaitingNote(this.api, model);
    const stream = (this.stream = new AnswerStream(this.api, {
      onAccepted: (rid) => {
        answer.rid = rid;
        this.source = { ...run, rid };
        this.store.write('completion-run', this.source);
        waiting.accepted();
      },
      onEvent: (chunk, eventId) => this.stream === stream && this.#take(chunk, eventId, answer, numbers, waiting),
      onSilence: () => {},
      onCut: () => this.foot.replaceChildren(chip('The connection was lost; reconnecting…')),
      onResumed: () => (answer.numbers.numResumes = (answer.numbers.numResumes ?? 0) + 1),
      onRestart: () => this.strip.clear(),
    }));
    this.strip.clear();
    numbers.sent();
    this.promptSent ??= this.prompt.value;
    this.output.dataset.state = 'running';
    this.foot.replaceChildren(waiting.element);
    this.#showBusy(true);
    try {
      await start(stream);
    } catch (error) {
      if (this.stream === stream) answer.error = stream.isStopped ? 'stopped' : error.message;
    }
    waiting.end();
    if (this.stream !== stream) return; // another one took its place
    this.stream = null;
    this.strip.end();
    this.output.dataset.state = 'done';
    this.#showBusy(false);
    this.#showFoot(answer);
    await notePath(this.api, answer);
    if (!this.stream) this.#showFoot(answer);
  }

  #take(chunk, eventId, answer, numbers, waiting) {
    if (chunk.usage) numbers.counted(chunk.usage);
    const choice = chunk.choices[0];
    if (!choice) return;
    this.strip.add(choice.text, choice.logprobs);
    if (choice.logprobs) {
      waiting.end();
      numbers.heard(positionOf(eventId));
      this.strip.numGiven = this.strip.tokens.length - positionOf(eventId);
    }
    if (choice.finish_reason) answer.finishReason = choice.finish_reason;
  }

  #showFoot(answer) {
    if (answer.error && !answer.rid) this.store.remove('completion-run');
    const error = answer.error && el('p', { class: 'notice is-bad', role: 'alert' }, answer.error);
    const isGone = answer.error && !this.strip.tokens.length && answer.numbers.numResumes === undefined;
    this.foot.replaceChildren(...[error, isGone ? null : answerNumbersElement(answer), this.#sourceElement()].filter(Boolean));
  }

  #sourceElement() {
    const { forkOf, at } = this.source;
    if (!forkOf) return null;
    const label = `Forked behind ${at === 1 ? 'a token' : `${at} tokens`} of ${forkOf.rid.slice(0, 8)}: back to it`;
    return el('button', { type: 'button', class: 'chip is-button', onclick: () => this.#reopen(forkOf) }, label);
  }

  #showBusy(isBusy) {
    byId('completion-run').hidden = isBusy;
    byId('completion-stop').hidden = !isBusy;
  }

  #onKey(event) {
    if (this.root.hidden || document.querySelector('dialog[open]')) return;
    if (event.key === 'Escape') this.stream?.stop();
    else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) this.#run();
  }
}
