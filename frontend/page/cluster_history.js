'use strict';
// The last five minutes: figures once a second, and the states that each worker has been in.

const HISTORY_S = 300;
const CLUSTER_STATES = ['starting', 'loading', 'ready', 'paused', 'frozen', 'updating', 'draining', 'hung', 'gone'];

/** Figures of the whole cluster, and how much each worker has to do. */
class ClusterHistory {
  constructor() {
    this.samples = []; // oldest first
    this.counts = new Map(); // what each counter had come to, by its owner's id
    this.loads = new Map(); // worker -> [{at, share}]
  }

  note(cluster) {
    const { at } = cluster;
    if (this.samples.at(-1)?.at >= at) return;
    this.samples.push(this.#sample(cluster));
    this.samples = this.samples.filter((sample) => sample.at > at - HISTORY_S);
    for (const [id, worker] of Object.entries(cluster.workers)) {
      const share = worker.max_running ? Math.min(1, worker.num_running / worker.max_running) : 0;
      this.#load(id).push({ at, share });
    }
    for (const [id, load] of this.loads) {
      const kept = load.filter((sample) => sample.at > at - HISTORY_S);
      if (kept.length) this.loads.set(id, kept);
      else this.loads.delete(id);
    }
  }

  /** The values of one figure: [{at, value}]. */
  series(name) {
    return this.samples.map((sample) => ({ at: sample.at, value: sample[name] }));
  }

  /** The sum of what was added to a counter while we looked. */
  total(name) {
    return this.samples.reduce((sum, sample) => sum + sample[name], 0);
  }

  #load(id) {
    if (!this.loads.has(id)) this.loads.set(id, []);
    return this.loads.get(id);
  }

  #sample(cluster) {
    const workers = Object.values(cluster.workers);
    const queues = Object.values(cluster.queues).flatMap((classes) => Object.values(classes));
    const sum = (items, name) => items.reduce((total, item) => total + (item[name] ?? 0), 0);
    const numTokens = sum(workers, 'num_kv_tokens');
    const numUsed = workers.reduce((used, each) => used + each.kv_cache_usage * each.num_kv_tokens, 0);
    const numQueries = sum(workers, 'num_prefix_queries');
    return {
      at: cluster.at,
      queued: sum(queues, 'num_waiting'),
      oldest: Math.max(0, ...queues.map((queue) => queue.oldest_wait_s)),
      running: sum(workers, 'num_running'),
      slots: sum(workers, 'max_running'),
      kv: numTokens ? numUsed / numTokens : null,
      hits: numQueries ? sum(workers, 'num_prefix_hits') / numQueries : null,
      tokens: sum(workers, 'tokens_per_s'),
      redelivered: this.#added(cluster.workers, 'num_redelivered'),
      fenced: this.#added(cluster.detokenizers ?? {}, 'num_fenced'),
    };
  }

  /** Counters end with their owners: only what they grow by adds up. */
  #added(owners, name) {
    let added = 0;
    for (const [id, owner] of Object.entries(owners)) {
      const key = `${name} ${id}`;
      const before = this.counts.get(key) ?? (this.samples.length ? 0 : owner[name]);
      added += Math.max(0, owner[name] - before);
      this.counts.set(key, owner[name]);
    }
    return added;
  }
}

/** Each worker's life as bands: [{id, model, bands: [{state, from, to}], detail, isGone, goneAt}], by their start. */
function workerLives(cluster, now) {
  const lives = new Map();
  const lifeOf = (id, model) => {
    if (!lives.has(id)) lives.set(id, { id, model, bands: [], detail: '', isGone: false, goneAt: null });
    return lives.get(id);
  };
  const enter = (life, state, at) => {
    const last = life.bands.at(-1);
    if (last?.state === state) return;
    if (last) last.to = Math.max(last.from, at);
    life.bands.push({ state, from: at, to: null });
  };
  const events = Object.values(cluster.events).filter(({ event }) => event === 'worker');
  for (const event of events.sort((a, b) => a.at - b.at)) {
    const life = lifeOf(event.worker, event.model);
    if (event.state === 'gone') {
      if (!life.bands.length) life.bands.push({ state: 'ready', from: now - HISTORY_S, to: null });
      if (!life.isGone) Object.assign(life, { isGone: true, goneAt: event.at, detail: event.detail ?? '' });
      life.bands.at(-1).to = event.at;
    } else if (!life.isGone) {
      enter(life, event.state, event.at);
    }
  }
  for (const [id, worker] of Object.entries(cluster.workers)) {
    const life = lifeOf(id, worker.model);
    if (life.isGone) continue; // its card is about to expire
    if (!life.bands.length) life.bands.push({ state: worker.state, from: worker.started_at, to: null });
    enter(life, worker.state, now);
  }
  for (const life of lives.values()) {
    const last = life.bands.at(-1);
    const isStarting = last.state === 'starting' && now - last.from < 60;
    if (!life.isGone && !(life.id in cluster.workers) && !isStarting) {
      Object.assign(life, { isGone: true, goneAt: last.from, detail: 'nobody told how' });
      last.to ??= last.from;
    }
    last.to ??= now;
  }
  return [...lives.values()]
    .filter((life) => !life.isGone || life.goneAt > now - HISTORY_S)
    .sort((a, b) => a.bands[0].from - b.bands[0].from || a.id.localeCompare(b.id));
}
