package main

import (
	"os"
	"strings"
)

// The escape sequences of a terminal that the screen uses.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // second screen, no cursor, no line wrap
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	beginFrame  = "\x1b[?2026h\x1b[H" // show nothing until endFrame, where the terminal knows how; go to the top left
	endFrame    = "\x1b[J\x1b[?2026l" // clear what is below
	endLine     = "\x1b[K"            // clear what is to the right
	bold        = "\x1b[1m"
	dim         = "\x1b[2m"
	plain       = "\x1b[0m"
)

// screen draws whole pictures over each other on a terminal. It clears nothing
// before it draws, so that nothing flickers.
type screen struct {
	f    *os.File
	left bool
}

func newScreen(f *os.File) (*screen, error) {
	_, err := f.WriteString(enterScreen)
	return &screen{f: f}, err
}

// draw shows lines, which must fit the window.
func (s *screen) draw(lines []string) error {
	_, err := s.f.WriteString(frame(lines))
	return err
}

func frame(lines []string) string {
	return beginFrame + strings.Join(lines, endLine+"\r\n") + endLine + endFrame
}

// leave restores the terminal. It may be called twice.
func (s *screen) leave() {
	if !s.left {
		s.left = true
		_, _ = s.f.WriteString(leaveScreen) // a terminal that is gone needs nothing
	}
}
