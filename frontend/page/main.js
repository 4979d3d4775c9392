'use strict';
// Wires the page.

function main() {
  const api = new Api();
  const store = new Store(api.path, () => toast('This browser’s storage is full. Export your conversations, then delete some.'));
  const models = new ModelList(api, store);
  const code = new CodeDialog(api);
  byId('key-button').addEventListener('click', async () => {
    if (await api.key.ask()) models.refresh();
  });
  new Theme(byId('theme-button'), store);
  new Tabs({
    chat: new ChatTab(byId('panel-chat'), api, store, models, code),
    completions: new CompletionsTab(byId('panel-completions'), api, store, models, code),
    cluster: new ClusterTab(byId('panel-cluster'), api),
  });
}

main();
