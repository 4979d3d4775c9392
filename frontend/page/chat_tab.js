'use strict';
// The Chat tab.

class ChatTab {
  constructor(root, api) {
    this.root = root;
    this.api = api;
  }

  show() {}

  hide() {}
}
