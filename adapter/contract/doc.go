// Package contract tests that the adapter keeps the contract of package jetbus, on one
// broker in fake time, with topics in memory and in files. It stands apart from the
// adapter's own tests so that the two run beside each other.
package contract
