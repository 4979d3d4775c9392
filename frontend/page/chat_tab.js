'use strict';
// The Chat tab: one conversation at a time, and the runs of all of them.

const NEAR_END = 60; // px: so close to the end the view follows what is written

class ChatTab {
  constructor(root, api, store, models, code) {
    this.root = root;
    this.api = api;
    this.store = store;
    this.models = models;
    this.book = new ConversationBook(store);
    this.runs = new Map(); // by conversation id
    this.views = [];
    this.transcript = byId('transcript');
    this.scroller = byId('chat-scroller');
    this.status = byId('chat-status');
    this.code = code;
    this.drawers = new Drawers(root, store);
    this.controls = new SamplingControls(byId('chat-settings'), 'chat', { withChat: true, onChange: () => this.#keepSettings() });
    this.composer = new Composer(root, {
      send: (text, pictures) => this.#send(text, pictures),
      stop: () => this.run?.stop(),
      editLast: () => this.views.findLast((view) => view.message.role === 'user')?.edit(),
    });
    this.sidebar = new ChatSidebar(this.book, {
      open: (id) => this.#open(this.book.get(id)),
      begin: () => this.#begin(),
      changed: (id) => this.#changed(id),
      remove: (id) => this.#remove(id),
      imported: (count) => this.#imported(count),
      failed: (error) => toast(`Nothing was imported: ${error.message}`),
    });
    models.attach(byId('chat-model'));
    models.watch((defaults) => this.controls.showDefaults(defaults));
    byId('settings-reset').addEventListener('click', () => this.#resetSettings());
    byId('to-end').addEventListener('click', () => this.#scrollToEnd());
    this.scroller.addEventListener('scroll', () => this.#noteScroll());
    for (const button of document.querySelectorAll('[data-suggestion]')) {
      button.addEventListener('click', () => this.#send(button.textContent, []));
    }
    document.addEventListener('keydown', (event) => this.#onKey(event));
    window.addEventListener('storage', (event) => this.#onOtherTab(event.key));
    window.addEventListener('pagehide', () => this.runs.forEach((run) => run.save()));
    this.#open(this.book.get(store.read('current')) ?? this.book.list[0] ?? this.#fresh());
    for (const conversation of this.book.list) if (conversation.running) this.#start(conversation);
  }

  get run() {
    return this.runs.get(this.conversation.id) ?? null;
  }

  show() {
    this.composer.focus();
  }

  hide() {}

  // Conversations

  #fresh() {
    return Conversation.begin({ ...(this.conversation?.settings ?? this.store.read('settings', {})) });
  }

  #begin() {
    this.#open(this.conversation.isEmpty ? this.conversation : this.#fresh());
    this.composer.focus();
  }

  #open(conversation) {
    this.conversation = conversation;
    this.store.write('current', conversation.id);
    this.controls.values = conversation.settings;
    this.drawers.close();
    this.#showAll();
    this.#scrollToEnd();
  }

  #remove(id) {
    this.runs.get(id)?.stop();
    this.book.remove(id);
    if (id === this.conversation.id) this.#open(this.book.list[0] ?? this.#fresh());
    else this.#showSidebar();
  }

  /** Its name, or its place in the list. */
  #changed(id) {
    if (id === this.conversation.id) this.#showTitle();
    this.#showSidebar();
  }

  #imported(count) {
    toast(count === 1 ? 'One conversation was imported.' : `${count} conversations were imported.`);
    this.#open(this.book.get(this.conversation.id) ?? this.conversation);
  }

  /** Another tab of this browser has changed what is kept. */
  #onOtherTab(key) {
    const id = this.book.reload(key);
    if (!id || this.runs.has(id)) return;
    if (id === this.conversation.id) this.#open(this.book.get(id) ?? this.#fresh());
    else this.#showSidebar();
  }

  #keepSettings() {
    const { conversation } = this;
    conversation.settings = this.controls.values;
    this.store.write('settings', conversation.settings);
    if (!conversation.isEmpty) this.book.save(conversation);
  }

  #resetSettings() {
    this.controls.values = {};
    this.#keepSettings();
  }

  // Sending

  /** Whether it was taken. */
  #send(text, pictures) {
    if (this.run || !this.#canSend()) return false;
    this.conversation.add({ role: 'user', content: text, pictures });
    this.#answer();
    return true;
  }

  /** Whether no answer is being made; the user is told where one is. */
  #isIdle() {
    if (this.run) toast('An answer is being written: stop it first.');
    return !this.run;
  }

  #canSend() {
    const problem = this.models.chosen ? this.controls.findProblem() : this.models.problem;
    if (problem) toast(problem);
    return !problem;
  }

  #answer(fields = {}) {
    this.conversation.add({ ...newAnswer(this.models.chosen), ...fields });
    this.book.save(this.conversation);
    this.#start(this.conversation);
    this.#showAll();
    this.#scrollToEnd();
  }

  #start(conversation) {
    const run = new AnswerRun(this.api, this.book, conversation, {
      onChange: () => this.#onChange(run),
      onEnd: () => this.#onEnd(run),
      askOther: (model) => this.#askOther(run, model),
    });
    this.runs.set(conversation.id, run);
    run.run();
    if (conversation === this.conversation) this.#showAll();
  }

  /** The same question, to a model that is served. */
  async #askOther(run, model) {
    run.stop();
    this.runs.delete(run.conversation.id);
    await this.models.refresh();
    this.models.choose(model);
    if (run.conversation !== this.conversation) return;
    this.conversation.cut(this.conversation.messages.indexOf(run.answer));
    this.#answer();
  }

  #edit(index, text) {
    const { conversation } = this;
    const message = conversation.messages[index];
    if (message.role === 'user') {
      if (!text.trim() || !this.#canSend()) return;
      this.run?.stop();
      this.runs.delete(conversation.id);
      if (!index) conversation.title = '';
      conversation.add({ ...message, content: text, versions: conversation.fork(index) });
      this.#answer();
    } else if (this.#isIdle()) {
      conversation.add({ ...message, content: text, textStart: null, versions: conversation.fork(index) });
      this.book.save(conversation);
      this.#showAll();
    }
  }

  /** The same answer up to a word, and from there another one. */
  #fork(index, offset) {
    if (!this.#isIdle()) return;
    const { rid, model, textStart } = this.conversation.messages[index];
    this.#answer({ model, forkOf: { rid, offset: textStart + offset }, versions: this.conversation.fork(index) });
  }

  #regenerate(index) {
    if (!this.#isIdle() || !this.#canSend()) return;
    this.#answer({ versions: this.conversation.fork(index) });
  }

  #showVersion(index, at) {
    if (!this.#isIdle()) return;
    this.conversation.showVersion(index, at);
    this.book.save(this.conversation);
    this.#showAll();
  }

  /** The answer goes on where it ended, in the same message. */
  #continue(index) {
    if (this.run || !this.#canSend()) return;
    const { content, reasoning, versions } = this.conversation.messages[index];
    this.conversation.cut(index);
    this.#answer({ content, reasoning, versions, continues: content });
  }

  #sendResults(index, results) {
    if (this.run || !this.#canSend()) return;
    const { toolCalls } = this.conversation.messages[index];
    toolCalls.forEach(({ id, name }, i) => this.conversation.add({ role: 'tool', callId: id, name, content: results[i] }));
    this.#answer();
  }

  #showCode(index) {
    if (!this.#canSend()) return;
    const { path, body } = this.conversation.requestOf(index);
    this.code.open(path, body);
  }

  // Showing

  #showAll() {
    const { conversation } = this;
    const actions = {
      edit: (index, text) => this.#edit(index, text),
      regenerate: (index) => this.#regenerate(index),
      fork: (index, offset) => this.#fork(index, offset),
      showVersion: (index, at) => this.#showVersion(index, at),
      continueAnswer: (index) => this.#continue(index),
      showCode: (index) => this.#showCode(index),
      sendResults: (index, results) => this.#sendResults(index, results),
    };
    this.views = conversation.messages.map((message, index) => new MessageView(message, index, actions));
    this.transcript.replaceChildren(...this.views.map((view) => view.element));
    byId('welcome').hidden = !conversation.isEmpty;
    this.#showTitle();
    this.views.forEach((view, i) => view.show(view.message === this.run?.answer ? this.run : null, i === this.views.length - 1));
    this.composer.isBusy = Boolean(this.run);
    this.#showSidebar();
  }

  #showTitle() {
    byId('chat-title').textContent = this.conversation.title || 'New chat';
  }

  #showSidebar() {
    this.sidebar.show(this.conversation.id, new Set(this.runs.keys()));
  }

  /** At most once a frame, however many events come. */
  #onChange(run) {
    if (run.conversation !== this.conversation || this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      if (run === this.run || run.answer === this.views.at(-1)?.message) this.#showLast(this.run);
    });
  }

  #showLast(run) {
    const isAtEnd = this.isAtEnd;
    this.views.at(-1).show(run, true);
    if (isAtEnd) this.#scrollToEnd();
  }

  #onEnd(run) {
    if (this.runs.get(run.conversation.id) !== run) return; // it was stopped for another one
    this.runs.delete(run.conversation.id);
    this.#showSidebar();
    if (run.conversation !== this.conversation) return;
    this.#showLast(null);
    this.composer.isBusy = false;
    this.status.textContent = { done: 'The answer is complete.', stopped: 'Stopped.', failed: 'The answer failed.' }[run.answer.state];
  }

  get isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR_END;
  }

  #scrollToEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#noteScroll();
  }

  #noteScroll() {
    byId('to-end').hidden = this.isAtEnd;
  }

  #onKey(event) {
    if (this.root.hidden || document.querySelector('dialog[open]')) return;
    if (event.key === 'Escape') {
      if (this.drawers.isOpen) this.drawers.close();
      else this.run?.stop();
    } else if (event.key === '/' && !event.target.closest('input, textarea, select')) {
      event.preventDefault();
      this.composer.input.focus();
    }
  }
}
