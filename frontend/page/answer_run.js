'use strict';
// One answer while it is being made: takes the stream's events into the message that is kept.

const SAVE_EVERY_MS = 300;
const STALL_MS = 1_000; // without a token, once there were some: then its worker may be gone

class AnswerRun {
  /** `onChange(run)` after anything that can be seen; `onEnd(run)` once; `askOther(model)`: the user wants that one,
   * which is served, in place of one that is not.
   */
  constructor(api, book, conversation, { onChange, onEnd, askOther }) {
    this.book = book;
    this.conversation = conversation;
    this.answer = conversation.running;
    this.onChange = onChange;
    this.onEnd = onEnd;
    this.numbers = new AnswerNumbers(this.answer.numbers);
    this.stream = new AnswerStream(api, this);
    this.waiting = new WaitingNote(api, this.answer.model, askOther);
    this.api = api;
    this.length = [...this.answer.content].length; // in code points
    this.savedAt = 0;
    this.heardAt = performance.now();
    this.isCut = false;
    this.isStalled = false;
    this.timer = setInterval(() => this.#lookForStall(), STALL_MS);
  }

  /** A request that was not sent yet, or the rest of one that was sent before the page was loaded. */
  async run() {
    const { answer, conversation, stream } = this;
    try {
      if (answer.rid) {
        this.waiting.say('Resuming');
        await stream.resume(answer.rid, answer.eventId);
      } else {
        this.numbers.sent();
        this.save();
        const { path, body } = conversation.requestOf(conversation.messages.indexOf(answer));
        await stream.start(path, body, answer.key);
      }
      this.#end('done');
    } catch (error) {
      if (!stream.isStopped) answer.error = whyFailed(answer, error);
      this.#end(stream.isStopped ? 'stopped' : 'failed');
    }
  }

  stop() {
    this.stream.stop();
  }

  save() {
    this.savedAt = performance.now();
    if (this.book.get(this.conversation.id)) this.book.save(this.conversation); // else it was deleted
  }

  onAccepted(rid) {
    this.answer.rid = rid;
    this.isCut = false;
    this.waiting.accepted();
    this.save();
    this.onChange(this);
  }

  onEvent(chunk, eventId) {
    const { answer } = this;
    answer.eventId = eventId;
    this.heardAt = performance.now();
    this.isStalled = false;
    if (chunk.usage) this.numbers.counted(chunk.usage);
    const choice = chunk.choices[0];
    if (choice) this.#take(choice, eventId);
    if (performance.now() - this.savedAt > SAVE_EVERY_MS) this.save();
    this.onChange(this);
  }

  onSilence() {}

  onCut() {
    this.isCut = true;
    this.onChange(this);
  }

  onResumed() {
    this.isCut = false;
    this.answer.numbers.numResumes = (this.answer.numbers.numResumes ?? 0) + 1;
    this.onChange(this);
  }

  onRestart() {
    Object.assign(this.answer, { content: this.answer.continues ?? '', reasoning: '', toolCalls: [], eventId: null });
    delete this.answer.textStart;
    this.length = [...this.answer.content].length;
  }

  #take({ delta, finish_reason: reason }, eventId) {
    const { answer } = this;
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? '';
    if (delta.content) this.#takeContent(delta.content, eventId);
    answer.reasoning += reasoning;
    for (const call of delta.tool_calls ?? []) this.#takeCall(call);
    if (reason) answer.finishReason = reason;
    if (delta.content || reasoning || delta.tool_calls) {
      if (!this.waiting.isOver) this.#notePath();
      this.waiting.end();
      this.numbers.heard(positionOf(eventId));
    }
  }

  #takeContent(text, eventId) {
    const { answer } = this;
    answer.content += text;
    this.length += [...text].length;
    const start = textLengthOf(eventId) - this.length;
    if (answer.textStart === undefined) answer.textStart = start;
    else if (answer.textStart !== start) answer.textStart = null;
  }

  async #lookForStall() {
    if (!this.waiting.isOver || this.isCut || performance.now() - this.heardAt < STALL_MS) return;
    this.isStalled = true;
    await this.#notePath();
  }

  async #notePath() {
    if (await notePath(this.api, this.answer)) this.save();
    this.onChange(this);
  }

  #takeCall({ index, id, function: { name, arguments: text } = {} }) {
    const call = (this.answer.toolCalls[index] ??= { id: '', name: '', arguments: '' });
    if (id) call.id = id;
    if (name) call.name = name;
    call.arguments += text ?? '';
  }

  #end(state) {
    const { answer } = this;
    answer.state = state;
    answer.eventId = null;
    delete answer.key;
    this.waiting.end();
    clearInterval(this.timer);
    this.conversation.updatedAt = Date.now();
    this.save();
    this.onEnd(this);
    this.#notePath();
  }
}

/** In words that say whether the service has the request. */
function whyFailed({ rid }, error) {
  if (error instanceof ApiError) return error.message;
  return rid ? `${SERVER_AWAY} It has accepted this request: reload the page when it is back.` : `${SERVER_AWAY} This message was not accepted. ${START_IT}`;
}
