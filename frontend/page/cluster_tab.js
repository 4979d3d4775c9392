'use strict';
// The Cluster tab: read from the frontend while it is seen, and only then.

class ClusterTab {
  /** `root`: the empty panel; `api`: sends requests with the user's key (api.js). */
  constructor(root, api) {
    this.isShown = false;
    this.history = new ClusterHistory();
    this.feed = new ClusterFeed(api, {
      onHistory: (history) => this.history.begin(history),
      onCluster: (cluster) => this.#show(cluster),
      onAway: (error) => this.#away(error),
    });
    this.orders = new AdminOrders(api);
    this.orders.onGiven = (verb, worker) => this.#obeyed(verb, worker);
    this.models = el('div', { class: 'cl-models' });
    this.live = el('span', { class: 'cl-live', role: 'status' });
    this.tiles = new ClusterTiles();
    this.timeline = new WorkerTimeline(this.orders);
    this.demo = new SurvivalDemo(api, this.orders);
    this.requests = new RequestTable((id) => this.timeline.mark(id));
    this.content = el('div', { class: 'cl-content' }, this.tiles.root, this.timeline.root, this.demo.root, this.requests.root);
    this.content.hidden = true;
    root.append(el('div', { class: 'cl-page' }, el('div', { class: 'cl-top' }, this.models, this.live), this.content));
    document.addEventListener('visibilitychange', () => this.#follow());
    byId('key-dialog').addEventListener('close', () => this.#follow()); // perhaps there is a key now
    this.#tellLive('is-away', 'connecting …');
  }

  /** The tab is seen from now on. */
  show() {
    this.isShown = true;
    this.#follow();
  }

  /** It is not seen any more: stop what costs something. */
  hide() {
    this.isShown = false;
    this.demo.hide();
    this.#follow();
  }

  #follow() {
    if (this.isShown && !document.hidden) this.feed.start();
    else this.feed.stop();
  }

  #obeyed(verb, worker) {
    if (verb === 'kill') this.demo.noteKilled();
    toast(verb === 'kill' ? `${workerLabel(worker)} was killed.` : `${workerLabel(worker)} is handing over its work.`);
  }

  #show(cluster) {
    this.content.hidden = false;
    this.orders.url = cluster.admin_url ?? null;
    this.history.note(cluster);
    this.tiles.show(this.history, cluster);
    this.timeline.show(cluster, this.history, this.feed.now);
    this.demo.show(cluster);
    this.requests.show(cluster);
    this.#showModels(cluster);
    if (cluster.error) this.#tellLive('is-away', cluster.error);
    else this.#tellLive('is-live', 'live');
  }

  #away(error) {
    this.#tellLive('is-away', error instanceof ApiError ? error.message : 'the frontend cannot be reached');
  }

  #tellLive(kind, text) {
    if (this.live.textContent === text) return;
    this.live.className = `cl-live ${kind}`;
    this.live.textContent = text;
  }

  #showModels(cluster) {
    const text = JSON.stringify([cluster.models, cluster.totals.num_dead, cluster.version, Object.keys(cluster.frontends ?? {}), Object.keys(cluster.detokenizers ?? {})]);
    if (this.models.dataset.shown === text) return;
    this.models.dataset.shown = text;
    const models = Object.entries(cluster.models).map(([name, model]) =>
      el('span', { class: 'cl-model-card' }, el('b', {}, name), el('small', {}, ` ${model.revision.slice(0, 10)} · ${model.max_context_len.toLocaleString()} tokens`, ...Object.keys(model.adapters).map((adapter) => ` · ${adapter}`))),
    );
    const parts = [`jetflock ${cluster.version}`];
    const count = (owners, one) => {
      const num = Object.keys(owners).length;
      parts.push(`${num} ${one}${num === 1 ? '' : 's'}`);
    };
    if (cluster.frontends) count(cluster.frontends, 'frontend');
    if (cluster.detokenizers) count(cluster.detokenizers, 'detokenizer');
    if (cluster.totals.num_dead) parts.push(`${cluster.totals.num_dead} dead requests: jetflock dead list`);
    this.models.replaceChildren(...models, el('small', { class: 'cl-hint' }, parts.join(' · ')));
  }
}
