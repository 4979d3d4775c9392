'use strict';
// The Completions tab.

class CompletionsTab {
  constructor(root, api) {
    this.root = root;
    this.api = api;
  }

  show() {}

  hide() {}
}
