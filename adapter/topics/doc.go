// Package topics tests what the adapter promises of topics: declaring, publishing, and
// keys. It stands apart from the adapter's other tests so that they run beside each other.
package topics
