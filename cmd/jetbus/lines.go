package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// lineReader gives the lines of a text that are not empty.
type lineReader struct {
	in     *bufio.Reader
	number int // of the line that next returned, from 1
}

func newLineReader(in io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(in, 64<<10)}
}

// next returns the next line that is not empty, without the space around it, or io.EOF.
// The slice is the caller's.
func (l *lineReader) next() ([]byte, error) {
	for {
		line, err := l.read()
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil // an error shows up at the next call
		}
		if err != nil {
			return nil, err
		}
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
