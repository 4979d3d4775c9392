'use strict';
// One streamed answer, read to its end whatever happens to the connection.

const RESUME_GRACE_S = 120; // so long the request runs on while nobody reads it
const GIVE_UP_AFTER_MS = 90_000; // without any event: then a frontend would have come back
const FIRST_RETRY_MS = 250;
const LONGEST_RETRY_MS = 4_000;
const PATIENCE_MS = 2_000; // with a request that is to be stopped before its id is known

/** What cannot be helped by coming back later. */
function isFinal(error) {
  return error instanceof ApiError && ![429, 502, 503, 504].includes(error.status);
}

/** Starts a request, or takes up one that was started before the page was loaded, and follows it.
 *
 * Every event has an id that says how much text came before it. When the connection is cut, the
 * stream goes on behind the last one, on any frontend: GET v1/streams/<rid> with Last-Event-ID. A
 * POST that was cut before its answer is sent again with the same idempotency key: it runs once.
 */
class AnswerStream {
  /** `listener`: onAccepted(rid), onEvent(chunk, eventId), onSilence(), onCut(error), onResumed(),
   * onRestart() (the text comes again from its beginning).
   */
  constructor(api, listener) {
    this.api = api;
    this.listener = listener;
    this.rid = null;
    this.eventId = null;
    this.controller = new AbortController();
    this.isStopped = false;
    this.isOver = false;
    this.lastHeardAt = 0;
  }

  /** Until the end. Throws ApiError, or AbortError once it has been stopped. */
  async start(path, body, idempotencyKey = randomId()) {
    const headers = { 'X-Resume-Grace': String(RESUME_GRACE_S), 'Idempotency-Key': idempotencyKey };
    const { signal } = this.controller;
    await this.#follow(() => (this.rid ? this.#reopen() : this.api.post(path, body, { headers, signal })));
  }

  /** The same, of a stream of which everything up to `eventId` is known; null: nothing is. */
  async resume(rid, eventId) {
    this.rid = rid;
    this.eventId = eventId;
    await this.#follow(() => this.#reopen(), true);
  }

  /** Ends the request in the service too: without that, it would run on for the grace period. */
  stop() {
    this.isStopped = true;
    if (this.rid) this.#endRequest();
    else setTimeout(() => this.controller.abort(), PATIENCE_MS); // what was sent has an id soon: that is to end
  }

  #endRequest() {
    this.controller.abort();
    this.api.post('abort_request', { rid: this.rid }).catch(() => {}); // its deadline ends it
  }

  async #reopen() {
    const headers = { 'X-Resume-Grace': String(RESUME_GRACE_S) };
    if (this.eventId) headers['Last-Event-ID'] = this.eventId;
    const response = await this.api.fetch(`v1/streams/${this.rid}`, { headers, signal: this.controller.signal });
    if (response.status !== 409) return response;
    this.eventId = null; // what we have is not the beginning of this stream
    this.listener.onRestart();
    return this.#reopen();
  }

  async #follow(open, isCut = false) {
    let pauseMs = FIRST_RETRY_MS;
    this.lastHeardAt = performance.now();
    while (!this.isOver) {
      try {
        const response = await open();
        if (!response.ok) throw await ApiError.of(response);
        if (isCut && this.rid) this.listener.onResumed();
        const before = this.lastHeardAt;
        await this.#read(response);
        if (this.lastHeardAt !== before) pauseMs = FIRST_RETRY_MS;
        if (!this.isOver) throw new TypeError('The connection was cut.');
      } catch (error) {
        const isHopeless = performance.now() - this.lastHeardAt > GIVE_UP_AFTER_MS;
        if (this.isStopped || isFinal(error) || isHopeless || error instanceof SyntaxError) throw error;
        if (!this.rid && error instanceof ApiError && error.status === 429) throw error; // refused: the user decides
        isCut = true;
        this.listener.onCut(error);
        await this.#pause(pauseMs);
        pauseMs = Math.min(2 * pauseMs, LONGEST_RETRY_MS);
      }
    }
  }

  async #read(response) {
    this.rid ??= response.headers.get('x-request-id');
    if (this.isStopped && this.rid) this.#endRequest();
    if (this.rid) this.listener.onAccepted(this.rid);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new SseParser();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.lastHeardAt = performance.now();
      for (const event of parser.push(value)) this.#take(event);
      if (this.isOver) return;
    }
  }

  #take({ id, data }) {
    if (data === null) {
      this.listener.onSilence();
    } else if (data === '[DONE]') {
      this.isOver = true;
    } else {
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.code === 'poison' ? 500 : 499, chunk.error.message, chunk.error.code);
      if (id) this.eventId = id;
      this.listener.onEvent(chunk, this.eventId);
    }
  }

  /** Until it is time to try again, or the network is back, or the user stops it. */
  #pause(ms) {
    return new Promise((resolve) => {
      const { signal } = this.controller;
      const timer = setTimeout(end, ms);
      function end() {
        clearTimeout(timer);
        window.removeEventListener('online', end);
        signal.removeEventListener('abort', end);
        resolve();
      }
      window.addEventListener('online', end);
      signal.addEventListener('abort', end);
    });
  }
}

/** Output tokens that an event id stands for, of one choice. */
function positionOf(eventId) {
  return Number(eventId?.split('.')[1] ?? 0);
}

/** Code points of the stream's text that it stands for. */
function textLengthOf(eventId) {
  return Number(eventId?.split('.')[2] ?? 0);
}

/** 128 random bits; crypto.randomUUID is not there without TLS. */
function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
