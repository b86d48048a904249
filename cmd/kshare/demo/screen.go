package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// screen tells the story: events as they happen, a line of progress each second, a table in the end.
type screen struct {
	mu    sync.Mutex
	out   io.Writer
	color bool
	began time.Time
	shown map[string]bool
}

func newScreen(out io.Writer, color bool) *screen {
	return &screen{out: out, color: color, began: time.Now(), shown: map[string]bool{}}
}

const (
	dim   = "2"
	bold  = "1"
	green = "32"
	cyan  = "36"
)

func (s *screen) paint(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *screen) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%s  %s\n", s.paint(dim, fmt.Sprintf("%5.1fs", time.Since(s.began).Seconds())), text)
}

func (s *screen) event(format string, args ...any) {
	s.line(s.paint(cyan, "* "+fmt.Sprintf(format, args...)))
}

// once shows only the first event of a kind.
func (s *screen) once(kind, format string, args ...any) {
	s.mu.Lock()
	first := !s.shown[kind]
	s.shown[kind] = true
	s.mu.Unlock()
	if first {
		s.event(format, args...)
	}
}

func (s *screen) progress(second int, l *ledger, names []string) {
	t := l.counts()
	text := fmt.Sprintf("produced %4d  accepted %4d  released %2d  again %2d  rejected %2d ", t.produced, t.accepted, t.released, t.redelivered, t.rejected)
	for _, name := range names {
		n := l.tallyOf(name).accepted
		text += fmt.Sprintf(" %s %s%-3d", name, s.paint(green, bar(n, t.produced)), n)
	}
	s.line(text)
}

// bar draws n of all in up to six blocks.
func bar(n, all int) string {
	blocks := 0
	if all > 0 {
		blocks = min(6, (n*12+all-1)/all)
	}
	return strings.Repeat("#", blocks) + strings.Repeat(".", 6-blocks) + " "
}

func (s *screen) summary(l *ledger, cast []castMember) {
	t := l.counts()
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "\n%s\n", s.paint(bold, "consumer  replica  received  accepted  rejected  released  what happened"))
	for _, m := range cast {
		c := l.tallyOf(m.name)
		note := ""
		switch {
		case c.died > 0:
			note = fmt.Sprintf("died holding %d", c.died)
		case c.overslept > 0:
			note = fmt.Sprintf("let the lock expire on %d, %d late accepts refused", c.overslept, c.refused)
		}
		row := fmt.Sprintf("%-8s  %7s  %8d  %8d  %8d  %8d  %s", m.name, m.replica, c.received, c.accepted, c.rejected, c.released, note)
		fmt.Fprintln(s.out, strings.TrimRight(row, " "))
	}
	fmt.Fprintf(s.out, "\nproduced %d = accepted %d + rejected %d\n", t.produced, t.accepted, t.rejected)
	fmt.Fprintf(s.out, "released %d, delivered again %d, with a delivery count one higher %d\n", t.released, t.redelivered, t.exactlyTwo)
	fmt.Fprintf(s.out, "held by the dead and the sleeping consumer %d, delivered to others %d\n\n", t.held, t.recovered)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
