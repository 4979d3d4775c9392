'use strict';
// The Cluster tab.

class ClusterTab {
  /** `root`: the empty panel; `api`: sends requests with the user's key (api.js). */
  constructor(root, api) {
    this.root = root;
    this.api = api;
  }

  /** The tab is seen from now on. */
  show() {}

  /** It is not seen any more: stop what costs something. */
  hide() {}
}
