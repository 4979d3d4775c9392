'use strict';
// The figures of the cluster, each with its last five minutes.

const shareText = (share) => (share === null ? '–' : `${Math.round(share * 100)} %`);
const secondsText = (value) => (value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`);

// name, title, what its number is, the least that the axis shows, when it is a worry
const CLUSTER_TILES = [
  ['queued', 'In the queue', ({ queued }) => queued, 4],
  ['oldest', 'Longest wait', ({ oldest }) => secondsText(oldest), 1, ({ oldest }) => oldest > 10],
  ['running', 'Slots in use', ({ running, slots }) => `${running} / ${slots}`, 4],
  ['kv', 'KV cache', ({ kv }) => shareText(kv), 1, ({ kv }) => kv > 0.95],
  ['hits', 'Prefix hits', ({ hits }) => shareText(hits), 1],
  ['tokens', 'Tokens per second', ({ tokens }) => Math.round(tokens).toLocaleString(), 10],
  ['redelivered', 'Redeliveries', (_, total) => total, 2],
  ['fenced', 'Fenced writes', (_, total) => total, 2],
];
const TOLD_TO_OPERATORS = ['fenced'];
const ADDED_UP = ['redelivered', 'fenced'];

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
    for (const { name, root, number, spark, rest } of this.tiles) {
      const [text, top, isWorry] = rest;
      root.hidden = TOLD_TO_OPERATORS.includes(name) && !cluster.is_operator;
      number.textContent = text(last, ADDED_UP.includes(name) ? history.total(name) : null);
      root.classList.toggle('is-worry', Boolean(isWorry?.(last)));
      spark.show(history.series(name), last.at, top);
    }
  }
}
