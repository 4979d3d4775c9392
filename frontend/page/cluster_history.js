'use strict';
// The last five minutes: figures, and the states that each worker has been in.

const HISTORY_S = 300;
const CLUSTER_STATES = ['starting', 'loading', 'ready', 'paused', 'frozen', 'updating', 'draining', 'hung', 'gone'];

/** Figures of the whole service, and how much each worker has to do: oldest first. */
class ClusterHistory {
  constructor() {
    this.samples = []; // figures as the service tells them
    this.loads = new Map(); // worker -> [{at, share}]
  }

  /** What the service knows from before somebody looked, in the place of what is older than its end. */
  begin({ samples, slot_usage: usage }) {
    const end = samples.at(-1)?.at ?? 0;
    this.samples = [...samples, ...this.samples.filter(({ at }) => at > end)];
    const workers = new Set([...Object.keys(usage), ...this.loads.keys()]);
    for (const id of workers) {
      const kept = (usage[id] ?? []).map((share, place) => ({ at: samples[place].at, share })).filter(({ share }) => share !== null);
      this.loads.set(id, [...kept, ...this.#load(id).filter(({ at }) => at > end)]);
    }
  }

  note({ figures, workers }) {
    const last = this.samples.at(-1)?.at;
    if (!figures || last === figures.at) return;
    if (last > figures.at) Object.assign(this, new ClusterHistory()); // a clock was put back
    const start = figures.at - HISTORY_S;
    this.samples = [...this.samples, figures].filter(({ at }) => at > start);
    for (const [id, worker] of Object.entries(workers)) {
      const share = worker.max_running ? Math.min(1, worker.num_running / worker.max_running) : 0;
      this.#load(id).push({ at: figures.at, share });
    }
    for (const [id, load] of this.loads) {
      const kept = load.filter(({ at }) => at > start);
      if (kept.length) this.loads.set(id, kept);
      else this.loads.delete(id);
    }
  }

  /** The values of one figure: [{at, value}], null where it was not known. */
  series(name) {
    return this.samples.map((sample) => ({ at: sample.at, value: sample[name] ?? null }));
  }

  /** Of a figure that only grows, what each sample added to it. */
  growth(name) {
    return this.samples.map((sample, place) => {
      const before = this.samples[place - 1]?.[name] ?? sample[name];
      return { at: sample.at, value: Math.max(0, sample[name] - before) || 0 };
    });
  }

  #load(id) {
    if (!this.loads.has(id)) this.loads.set(id, []);
    return this.loads.get(id);
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
      Object.assign(life, { isGone: true, goneAt: last.from, detail: 'cause unknown' });
      last.to ??= last.from;
    }
    last.to ??= now;
  }
  return [...lives.values()]
    .filter((life) => !life.isGone || life.goneAt > now - HISTORY_S)
    .sort((a, b) => a.bands[0].from - b.bands[0].from || a.id.localeCompare(b.id));
}
