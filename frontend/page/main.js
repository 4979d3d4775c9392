'use strict';
// Wires the page.

function main() {
  const api = new Api();
  byId('key-button').addEventListener('click', () => api.key.ask());
  new Theme(byId('theme-button'), `jetflock:${api.path}:theme`);
  new Tabs({
    chat: new ChatTab(byId('panel-chat'), api),
    completions: new CompletionsTab(byId('panel-completions'), api),
    cluster: new ClusterTab(byId('panel-cluster'), api),
  });
}

main();
