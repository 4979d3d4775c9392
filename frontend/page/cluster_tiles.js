'use strict';
// The figures of the cluster, each with its last five minutes.

const shareText = (share) => (share === undefined ? '–' : `${Math.round(share * 100)} %`);
const secondsText = (value) => (value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`);

// name, title, what its number is, the least that the axis shows, when it is a worry
const CLUSTER_TILES = [
  ['num_waiting', 'In the queue', (last) => last.num_waiting, 4],
  ['oldest_wait_s', 'Longest wait', (last) => secondsText(last.oldest_wait_s), 1, (last) => last.oldest_wait_s > 10],
  ['num_running', 'Slots in use', (last) => `${last.num_running} / ${last.max_running}`, 4],
  ['kv_cache_usage', 'KV cache', (last) => shareText(last.kv_cache_usage), 1, (last) => last.kv_cache_usage > 0.95],
  ['prefix_hits', 'Prefix hits', (last) => shareText(last.prefix_hits), 1],
  ['tokens_per_s', 'Tokens/s', (last) => Math.round(last.tokens_per_s).toLocaleString(), 10],
  ['num_redelivered', 'Redeliveries', (_, total) => total, 2],
  ['num_fenced', 'Fenced writes', (_, total) => total, 2],
];
const TOLD_TO_OPERATORS = ['num_fenced'];
const ADDED_UP = ['num_redelivered', 'num_fenced'];

class ClusterTiles {
  constructor() {
    this.root = el('div', { class: 'cl-tiles' });
    this.tiles = CLUSTER_TILES.map(([name, title, ...rest]) => {
      const number = el('strong', { id: `cluster-${name}` });
      const note = ADDED_UP.includes(name) ? el('small', {}, 'in 5 min') : null;
      const spark = new Sparkline();
      const root = el('div', { class: 'cl-tile' }, el('span', { class: 'cl-tile-title' }, title), el('span', { class: 'cl-number' }, number, note), spark.root);
      this.root.append(root);
      return { name, root, number, spark, rest };
    });
  }

  show(history, cluster) {
    const last = history.samples.at(-1);
    if (!last) return;
    for (const { name, root, number, spark, rest } of this.tiles) {
      const [text, top, isWorry] = rest;
      root.hidden = TOLD_TO_OPERATORS.includes(name) && !cluster.is_operator;
      const series = ADDED_UP.includes(name) ? history.growth(name) : history.series(name);
      number.textContent = text(last, series.reduce((sum, { value }) => sum + value, 0));
      root.classList.toggle('is-worry', Boolean(isWorry?.(last)));
      spark.show(series, last.at, top);
    }
  }
}
