'use strict';
// A conversation as it is kept, and as it is sent.
//
// Messages: {role: 'user', content, pictures}, {role: 'tool', callId, content}, and answers: {role: 'assistant',
// content, reasoning, toolCalls, state: 'running' | 'done' | 'stopped' | 'failed', ...}. An answer that
// runs has `key` (its idempotency key), and once it was accepted `rid` and `eventId`, which says how
// much of it has come: it is written together with the text. `textStart`: where in the text of its stream
// `content` begins, in code points; null: in no one place. `forkOf`: the stream that it is a fork of, and where.
//
// A message that was edited or made again has `versions`: {at, tails}. Each tail is the messages from
// this one to the end, as they were with another version of it; that at `at` is null: it is the one seen.

const TITLE_LENGTH = 60;

class Conversation {
  constructor({ id, createdAt, updatedAt, title, settings, messages, isPinned = false }) {
    this.id = id;
    this.createdAt = createdAt;
    this.updatedAt = updatedAt;
    this.title = title;
    this.settings = settings;
    this.messages = messages;
    this.isPinned = isPinned;
  }

  static begin(settings = {}) {
    const now = Date.now();
    return new Conversation({ id: randomId(), createdAt: now, updatedAt: now, title: '', settings, messages: [] });
  }

  /** From JSON that may come from anywhere. Throws Error. */
  static of(json) {
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
      messages: json.messages.map(readMessage),
      isPinned: json.isPinned === true,
    });
  }

  /** Whether its title or a message has these words, in capitals or not. */
  has(words) {
    const wanted = words.toLowerCase();
    return [this.title, ...this.messages.map(({ content }) => content)].some((text) => text.toLowerCase().includes(wanted));
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

  /** Sets the message at `index` aside, and all behind it. Returns the `versions` of what is added in its place. */
  fork(index) {
    const { versions = { at: 0, tails: [null] } } = this.messages[index];
    this.#setAside(index, versions);
    versions.at = versions.tails.push(null) - 1;
    return versions;
  }

  /** Goes to another version of the message at `index`, and to what followed it then. */
  showVersion(index, at) {
    const { versions } = this.messages[index];
    this.#setAside(index, versions);
    this.messages.push(...versions.tails[at]);
    versions.tails[at] = null;
    versions.at = at;
    this.messages[index].versions = versions;
  }

  #setAside(index, versions) {
    delete this.messages[index].versions;
    versions.tails[versions.at] = this.messages.splice(index);
  }

  /** The request that the answer at `index` comes from: `path` and `body`. */
  requestOf(index) {
    const { forkOf } = this.messages[index];
    if (!forkOf) return { path: 'v1/chat/completions', body: this.#bodyOf(index) };
    const { rid, offset } = forkOf;
    return { path: `v1/streams/${encodeURIComponent(rid)}/fork`, body: { text_offset: offset, stream: true, store: true } };
  }

  #bodyOf(index) {
    const answer = this.messages[index];
    const messages = this.messages.slice(0, index).map(wireMessage);
    const system = this.settings.system?.trim();
    if (system) messages.unshift({ role: 'system', content: system });
    const body = { model: answer.model, messages, ...samplingBody(this.settings) };
    if (answer.continues) {
      messages.push({ role: 'assistant', content: answer.continues });
      Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
    }
    // What is kept can be forked when it is over, where the service keeps requests.
    return { ...body, store: true, stream: true, stream_options: { include_usage: true } };
  }
}

function isMessage(value) {
  const isText = (text) => text === undefined || text === null || typeof text === 'string';
  return ['user', 'assistant', 'tool'].includes(value?.role) && typeof value.content === 'string' && isText(value.reasoning) && (value.pictures ?? []).every(isPicture) && isVersions(value.versions);
}

function isVersions(value) {
  if (value === undefined) return true;
  const isTail = (tail, place) => (place === value.at ? tail === null : Array.isArray(tail) && tail.length > 0 && tail.every(isMessage));
  return Array.isArray(value?.tails) && Number.isInteger(value.at) && value.at in value.tails && value.tails.every(isTail);
}

/** With all that an answer has; of this version or an older one. */
function readMessage(message) {
  const read = message.role === 'assistant' ? { ...emptyAnswer(), state: 'done', ...message } : { ...message };
  if (read.versions) read.versions = { at: read.versions.at, tails: read.versions.tails.map((tail) => tail && tail.map(readMessage)) };
  return read;
}

function emptyAnswer() {
  return { role: 'assistant', content: '', reasoning: '', toolCalls: [], rid: null, eventId: null, error: null, numbers: {} };
}

/** One that is to be made. */
function newAnswer(model) {
  return { ...emptyAnswer(), model, state: 'running', key: randomId() };
}

/** Text, or parts where there are pictures. */
function userContent({ content, pictures = [] }) {
  if (!pictures.length) return content;
  const parts = pictures.map((url) => ({ type: 'image_url', image_url: { url } }));
  return content ? [{ type: 'text', text: content }, ...parts] : parts;
}

/** A message as the API takes it. */
function wireMessage(message) {
  if (message.role === 'tool') return { role: 'tool', tool_call_id: message.callId, content: message.content };
  if (message.role === 'user') return { role: 'user', content: userContent(message) };
  const wire = { role: 'assistant', content: message.content };
  if (message.reasoning) wire.reasoning_content = message.reasoning;
  if (message.toolCalls?.length) {
    wire.tool_calls = message.toolCalls.map(({ id, name, arguments: text }) => ({ id, type: 'function', function: { name, arguments: text } }));
  }
  return wire;
}
