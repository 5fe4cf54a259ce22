// Package intests is checked with its tests.
package intests
