'use strict';
// What the frontend tells of the cluster: a document that is kept up to date by merge patches.

const FEED_RETRY_MS = 1_000;

/** RFC 7396. */
function mergePatch(target, patch) {
  if (patch === null || typeof patch !== 'object' || Array.isArray(patch)) return patch;
  const merged = target !== null && typeof target === 'object' && !Array.isArray(target) ? { ...target } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete merged[name];
    else merged[name] = mergePatch(merged[name], value);
  }
  return merged;
}

/** Reads the stream of events while somebody looks. */
class ClusterFeed {
  /** `listener`: onHistory(history) before the first cluster, onCluster(cluster) after each change,
   * onAway(error) while it cannot be read. */
  constructor(api, listener) {
    this.api = api;
    this.listener = listener;
    this.controller = null;
    this.cluster = null;
    this.heardAt = 0;
  }

  start() {
    if (this.controller) return;
    this.controller = new AbortController();
    this.#follow(this.controller.signal);
  }

  stop() {
    this.controller?.abort();
    this.controller = null;
  }

  /** Seconds of the frontend's clock: those of the browser may be anything. */
  get now() {
    return this.cluster.at + (performance.now() - this.heardAt) / 1000;
  }

  async #follow(signal) {
    while (!signal.aborted) {
      try {
        const history = await this.api.fetch('cluster/history', { signal });
        if (history.ok) this.listener.onHistory(await history.json()); // one without it is an older frontend
        const response = await this.api.fetch('cluster/events', { signal });
        if (!response.ok) throw await ApiError.of(response);
        await this.#read(response);
      } catch (error) {
        if (signal.aborted) return;
        this.listener.onAway(error);
        if (error instanceof ApiError && error.status === 401) return this.stop(); // no key was given
      }
      await new Promise((resolve) => setTimeout(resolve, FEED_RETRY_MS));
    }
  }

  async #read(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new SseParser();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      for (const { name, data } of parser.push(value)) {
        if (data !== null) this.#take(name, JSON.parse(data));
      }
    }
  }

  #take(name, data) {
    this.cluster = name === 'snapshot' ? data : mergePatch(this.cluster, data);
    if (name === 'snapshot' || 'at' in data) this.heardAt = performance.now();
    this.listener.onCluster(this.cluster);
  }
}
