'use strict';
// Server-sent events, from text that is cut anywhere.

class SseParser {
  constructor() {
    this.rest = '';
  }

  /** The events that `text` completes: {id, name, data}, or {comment} for a sign of life. */
  push(text) {
    const blocks = (this.rest + text).split('\n\n');
    this.rest = blocks.pop();
    return blocks.map(SseParser.#event);
  }

  static #event(block) {
    const event = { id: null, name: null, data: null, comment: null };
    for (const line of block.split('\n')) {
      const colon = line.indexOf(':');
      const field = line.slice(0, colon);
      const value = line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
      if (colon === 0) event.comment = value;
      else if (field === 'id') event.id = value;
      else if (field === 'event') event.name = value;
      else if (field === 'data') event.data = event.data === null ? value : `${event.data}\n${value}`;
    }
    return event;
  }
}
