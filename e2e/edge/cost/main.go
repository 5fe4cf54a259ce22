// Command cost validates a payload and prints what that took. It is a program of its own because
// the race detector, under which tests run, multiplies the time.
//
// It reads a JSON array with a schema and a payload, both as strings, from standard input.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// tries is how often the payload is validated: the least time counts, as other programs and
// collections of garbage take their share of the rest.
const tries = 10

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run writes the milliseconds of CPU, the MiB that were allocated, and the verdict.
func run(in io.Reader, out io.Writer) error {
	var of [2]string
	if err := json.NewDecoder(in).Decode(&of); err != nil {
		return err
	}
	s, err := schema.Compile(of[0], schema.Options{})
	if err != nil {
		return err
	}
	payload := []byte(of[1])
	least := time.Hour
	var verdict error
	var before, after runtime.MemStats
	for range tries {
		runtime.ReadMemStats(&before)
		began, err := processor()
		if err != nil {
			return err
		}
		verdict = s.ValidateDeclared(payload)
		ended, err := processor()
		if err != nil {
			return err
		}
		least = min(least, ended-began)
		runtime.ReadMemStats(&after)
	}
	_, err = fmt.Fprintf(out, "%d %d %.60v\n", least.Milliseconds(), (after.TotalAlloc-before.TotalAlloc)>>20, verdict)
	return err
}

// processor returns the CPU time that the process has used, that of the collector included.
func processor() (time.Duration, error) {
	var usage syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err
}
