package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// lineReader reads the lines of a text that are not empty.
type lineReader struct {
	in     *bufio.Reader
	exact  bool // keep white space around a line, and cut only the line end
	number int  // of the line that next returned, from 1
}

func newLineReader(in io.Reader, exact bool) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(in, 256<<10), exact: exact}
}

// next returns the next line that is not empty, or io.EOF. The caller may keep the slice.
func (l *lineReader) next() ([]byte, error) {
	for {
		line, err := l.trimmed()
		if len(line) > 0 || err != nil {
			return line, err
		}
	}
}

// trimmed returns the next line without its line end. Unless exact is set, it also trims white space
// around the line. The last line needs no line end. The next call then returns io.EOF.
func (l *lineReader) trimmed() ([]byte, error) {
	line, err := l.read()
	if l.exact {
		line = withoutLineEnd(line)
	} else {
		line = bytes.TrimSpace(line)
	}
	switch {
	case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
		return line, nil
	}
	return nil, err
}

// line is one that is not empty.
type line struct {
	text   []byte
	number int
}

// batch waits for a line, and returns it with the lines after it that are already buffered, at most
// limit lines. After an error there are no more lines.
func (l *lineReader) batch(limit int) (list []line, err error) {
	text, err := l.next()
	for err == nil {
		if len(text) > 0 {
			list = append(list, line{text, l.number})
		}
		if len(list) == limit || !l.isMore() {
			break
		}
		text, err = l.trimmed()
	}
	return list, err
}

// isMore reports whether a whole line is there, so that to read it does not wait.
func (l *lineReader) isMore() bool {
	there, _ := l.in.Peek(l.in.Buffered()) // it is there
	return bytes.IndexByte(there, '\n') >= 0
}

// batches are read one ahead of who takes them.
type batches chan batch

type batch struct {
	lines []line
	err   error
}

// startBatches reads batches until the end of in or of ctx. A read that is blocked when ctx ends is
// not interrupted: it ends with the process.
func startBatches(ctx context.Context, in io.Reader, limit int, exact bool) batches {
	c := make(batches)
	go func() {
		from := newLineReader(in, exact)
		for more := true; more; {
			lines, err := from.batch(limit)
			select {
			case c <- batch{lines, err}:
			case <-ctx.Done():
			}
			more = err == nil && ctx.Err() == nil
		}
	}()
	return c
}

// next waits for a batch.
func (c batches) next(ctx context.Context) batch {
	select {
	case b := <-c:
		return b
	case <-ctx.Done():
		return batch{err: errors.New("interrupted before standard input ended")}
	}
}

// read returns one line of bounded length.
func (l *lineReader) read() ([]byte, error) {
	l.number++
	var line []byte
	for {
		part, err := l.in.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxPayload {
			return nil, fmt.Errorf("line %d is longer than %s", l.number, size(int64(maxPayload)))
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return line, fmt.Errorf("read standard input: %w", err)
		}
		return line, err
	}
}
