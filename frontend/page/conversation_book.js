'use strict';
// All conversations of this browser, each under a name of its own.

const EXPORT_FORMAT = 'jetflock-conversations';
const KEPT = 'conversation:'; // and the id

class ConversationBook {
  constructor(store) {
    this.store = store;
    this.conversations = new Map();
    for (const name of store.names(KEPT)) this.#load(store.read(name));
  }

  /** Those that are pinned, then the others; newest first. */
  get list() {
    return [...this.conversations.values()].sort((a, b) => b.isPinned - a.isPinned || b.updatedAt - a.updatedAt);
  }

  get(id) {
    return this.conversations.get(id) ?? null;
  }

  save(conversation) {
    this.conversations.set(conversation.id, conversation);
    this.store.write(KEPT + conversation.id, conversation);
  }

  remove(id) {
    this.conversations.delete(id);
    this.store.remove(KEPT + id);
  }

  export() {
    return JSON.stringify({ format: EXPORT_FORMAT, version: 1, conversations: this.list }, null, 2);
  }

  /** Adds those of an exported file, in place of older ones of the same id. Returns how many. Throws Error. */
  import(text) {
    const json = JSON.parse(text);
    if (json?.format !== EXPORT_FORMAT || !Array.isArray(json.conversations)) throw new Error('This file is not an export of conversations.');
    const conversations = json.conversations.map((each) => Conversation.of(each));
    for (const each of conversations) {
      if (each.running) each.running.state = 'stopped'; // it ran for somebody else
      this.save(each);
    }
    return conversations.length;
  }

  /** Takes what another tab has made of a conversation. Returns its id; null: the key names none. */
  reload(key) {
    const name = this.store.nameOf(key);
    if (!name?.startsWith(KEPT)) return null;
    const id = name.slice(KEPT.length);
    this.conversations.delete(id);
    this.#load(this.store.read(name));
    return id;
  }

  #load(json) {
    try {
      const conversation = Conversation.of(json);
      this.conversations.set(conversation.id, conversation);
    } catch {
      // of another version: it stays where it is
    }
  }
}
