package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus/internal/exactjson"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// maxPairLine bounds a line of schema check --jsonl. Schemas have far less.
const maxPairLine = 4 << 20

var errLongLine = fmt.Errorf("the line is longer than %s", size(int64(maxPairLine)))

// pairLine is a line of the input.
type pairLine struct {
	ID  json.RawMessage `json:"id"`
	Old json.RawMessage `json:"old"`
	New json.RawMessage `json:"new"`
}

// pairAnswer is a line of the output.
type pairAnswer struct {
	ID         json.RawMessage    `json:"id"`
	Compatible bool               `json:"compatible"`
	Direction  registry.Direction `json:"direction,omitempty"` // that is not proved; only with the level full
	verdictView
	Error string `json:"error,omitempty"`
}

// pairJob is a line to be judged.
type pairJob struct {
	line   []byte
	bad    error           // what is wrong with the line itself
	answer chan pairAnswer // cap 1: where the answer goes
}

// checkLines answers each line of in, in order and at once: a line that was given is
// answered before the next has to be. Several are judged at the same time.
func checkLines(ctx context.Context, in io.Reader, out io.Writer, p *pairChecker, fail bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workers := runtime.GOMAXPROCS(0)
	jobs := make(chan pairJob)                     // closed at the end of the input
	queue := make(chan chan pairAnswer, 4*workers) // answers to come, in order; closed with jobs
	var busy sync.WaitGroup
	for range workers {
		busy.Go(func() {
			for j := range jobs {
				j.answer <- p.answer(j.line, j.bad)
			}
		})
	}
	total, bad := 0, 0
	busy.Go(func() {
		for answer := range queue {
			a := <-answer
			if total++; !a.Compatible {
				bad++
			}
			if ctx.Err() != nil {
				continue
			}
			if err := writeAnswer(out, a); err != nil {
				cancel(err)
			}
		}
	})
	lines := bufio.NewReaderSize(in, 64<<10)
	var err error
	for ctx.Err() == nil && err == nil {
		var j pairJob
		j, err = readUntilDone(ctx, func() (j pairJob, err error) {
			j.line, j.bad, err = readPairLine(lines)
			return j, err
		})
		if j.bad != nil || len(bytes.TrimSpace(j.line)) > 0 {
			j.answer = make(chan pairAnswer, 1)
			queue <- j.answer
			jobs <- j
		}
	}
	close(jobs)
	close(queue)
	busy.Wait()
	switch {
	case errors.Is(context.Cause(ctx), context.Canceled):
		return fmt.Errorf("interrupted before the end of standard input: %s answered", plural(total, "pair"))
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read standard input: %w", err)
	case fail && bad > 0:
		return fmt.Errorf("%w: %s of %s are not", errPairs, count(bad), count(total))
	}
	return nil
}

func writeAnswer(out io.Writer, a pairAnswer) error {
	line, err := jsonLine(a)
	if err != nil {
		return err
	}
	_, err = out.Write(line)
	return err
}

// readPairLine returns the next line, and what is wrong with it. One that is too
// long is passed over. err is io.EOF after the last.
func readPairLine(in *bufio.Reader) (line []byte, bad, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxPairLine {
			bad, line = errLongLine, nil
		}
		if bad == nil {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, bad, err
		}
	}
}

// answer judges a line. Whatever is in it, there is an answer.
func (p *pairChecker) answer(line []byte, bad error) (a pairAnswer) {
	defer func() {
		if r := recover(); r != nil {
			a = pairAnswer{ID: a.ID, Error: fmt.Sprintf("the pair cannot be judged: %v", r)}
		}
	}()
	var in pairLine
	if bad == nil {
		in, bad = parsePair(line)
		a.ID = in.ID
	}
	var older, newer string
	if bad == nil {
		older, bad = schemaIn("old", in.Old)
	}
	if bad == nil {
		newer, bad = schemaIn("new", in.New)
	}
	var comparisons []registry.Comparison
	if bad == nil {
		comparisons, bad = p.compare(older, newer)
	}
	if bad != nil {
		a.Error = bad.Error()
		return a
	}
	worst := comparisons[0]
	for _, c := range comparisons {
		if c.Verdict.Result == schema.Refuted || c.Verdict.Result == schema.Unproved && worst.Verdict.Result == schema.Proved {
			worst = c
			if c.Verdict.Result == schema.Refuted {
				break
			}
		}
	}
	a.Compatible = worst.Verdict.Result == schema.Proved
	a.verdictView = viewOf(worst.Verdict)
	if len(comparisons) > 1 && !a.Compatible {
		a.Direction = worst.Direction
	}
	return a
}

func parsePair(line []byte) (in pairLine, err error) {
	if !utf8.Valid(line) {
		return in, errors.New("the line is not UTF-8")
	}
	if err := exactjson.Unmarshal(line, &in, exactjson.RefuseVariants); err != nil {
		return pairLine{}, fmt.Errorf("the line is no JSON object with the members id, old and new: %w", err)
	}
	return in, nil
}

// schemaIn is the text of a schema that stands in a line, or in a string there: a
// string is no schema.
func schemaIn(name string, raw json.RawMessage) (string, error) {
	switch {
	case raw == nil:
		return "", fmt.Errorf("%s is missing", name)
	case raw[0] != '"':
		return string(raw), nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return text, nil
}
