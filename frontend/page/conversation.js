'use strict';
// A conversation as it is kept, and as it is sent.
//
// Messages: {role: 'user', content}, {role: 'tool', callId, content}, and answers: {role: 'assistant',
// content, reasoning, toolCalls, state: 'running' | 'done' | 'stopped' | 'failed', ...}. An answer that
// runs has `key` (its idempotency key), and once it was accepted `rid` and `eventId`, which says how
// much of it has come: it is written together with the text.

const TITLE_LENGTH = 60;

class Conversation {
  constructor({ id, createdAt, updatedAt, title, settings, messages }) {
    this.id = id;
    this.createdAt = createdAt;
    this.updatedAt = updatedAt;
    this.title = title;
    this.settings = settings;
    this.messages = messages;
  }

  static begin(settings = {}) {
    const now = Date.now();
    return new Conversation({ id: randomId(), createdAt: now, updatedAt: now, title: '', settings, messages: [] });
  }

  /** From JSON that may come from anywhere. Throws Error. */
  static of(json) {
    const isText = (value) => value === undefined || value === null || typeof value === 'string';
    const isMessage = (each) => ['user', 'assistant', 'tool'].includes(each?.role) && typeof each.content === 'string' && isText(each.reasoning);
    if (typeof json?.id !== 'string' || !/^[\w-]{1,64}$/.test(json.id)) throw new Error('It has no id.');
    if (!Array.isArray(json.messages) || !json.messages.every(isMessage)) throw new Error('Its messages cannot be read.');
    const time = (value) => (Number.isFinite(value) ? value : Date.now());
    const settings = Object.fromEntries(Object.entries(json.settings ?? {}).filter(([, value]) => typeof value === 'string'));
    return new Conversation({
      id: json.id,
      createdAt: time(json.createdAt),
      updatedAt: time(json.updatedAt),
      title: String(json.title ?? ''),
      settings,
      messages: json.messages.map((message) => (message.role === 'assistant' ? { ...emptyAnswer(), state: 'done', ...message } : message)),
    });
  }

  get isEmpty() {
    return !this.messages.length;
  }

  /** The answer at its end, while it runs. */
  get running() {
    const last = this.messages.at(-1);
    return last?.state === 'running' ? last : null;
  }

  add(message) {
    this.messages.push(message);
    this.updatedAt = Date.now();
    if (!this.title && message.role === 'user') this.title = message.content.trim().replace(/\s+/g, ' ').slice(0, TITLE_LENGTH);
    return message;
  }

  /** Drops the message at `index` and all behind it. */
  cut(index) {
    this.messages.length = index;
  }

  /** The body of the request that the answer at `index` comes from. */
  bodyOf(index) {
    const answer = this.messages[index];
    const messages = this.messages.slice(0, index).map(wireMessage);
    const system = this.settings.system?.trim();
    if (system) messages.unshift({ role: 'system', content: system });
    const body = { model: answer.model, messages, ...samplingBody(this.settings) };
    if (answer.continues) {
      messages.push({ role: 'assistant', content: answer.continues });
      Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
    }
    return { ...body, stream: true, stream_options: { include_usage: true } };
  }
}

function emptyAnswer() {
  return { role: 'assistant', content: '', reasoning: '', toolCalls: [], rid: null, eventId: null, error: null, numbers: {} };
}

/** One that is to be made. */
function newAnswer(model) {
  return { ...emptyAnswer(), model, state: 'running', key: randomId() };
}

/** A message as the API takes it. */
function wireMessage(message) {
  if (message.role === 'tool') return { role: 'tool', tool_call_id: message.callId, content: message.content };
  if (message.role === 'user') return { role: 'user', content: message.content };
  const wire = { role: 'assistant', content: message.content };
  if (message.reasoning) wire.reasoning_content = message.reasoning;
  if (message.toolCalls?.length) {
    wire.tool_calls = message.toolCalls.map(({ id, name, arguments: text }) => ({ id, type: 'function', function: { name, arguments: text } }));
  }
  return wire;
}
