package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestReadmeListsEveryKey keeps the README's table of keys equal to the program's.
func TestReadmeListsEveryKey(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	d := defaults()
	for _, s := range settings {
		line := readmeLine(s, &d)
		if !strings.Contains(string(text), line) {
			t.Errorf("README.md has no line\n%s", line)
		}
	}
	for _, c := range commands() {
		if !strings.Contains(string(text), "`kshare "+c.name) {
			t.Errorf("README.md does not mention kshare %s", c.name)
		}
	}
}

func readmeLine(s setting, d *Config) string {
	value := s.get(d)
	if value != "" {
		value = "`" + value + "`"
	}
	return fmt.Sprintf("| `%s` | `%s` | %s | %s |", s.title(), s.env(), value, s.meaning)
}
