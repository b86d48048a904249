//go:build race

package sharestate

const raceDetector = true
