// Package changefeed holds change feeds to their promise while real things break: two
// feeds in processes of their own compete for a collection, and are killed and frozen;
// the broker is killed, cut off and restarted; MongoDB steps down, cuts connections and
// loses its majority. Its tests run themselves again as child processes, see TestMain.
package changefeed
