//go:build race

package bustest

const raceDetector = true
