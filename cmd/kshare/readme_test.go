package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"kshare/sharestate/statelog"
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

// TestReadmeGrantsRedisWhatIsNeeded: what is needed is tried by the tests of statelog.
func TestReadmeGrantsRedisWhatIsNeeded(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if line := "ACL SETUSER kshare on >PASSWORD " + strings.Join(statelog.Rights("kshare"), " "); !strings.Contains(string(text), line+"\n") {
		t.Errorf("README.md has no line\n%s", line)
	}
}

// TestReadmeNamesAllWaysToLogIn goes through the mechanisms and their keys.
func TestReadmeNamesAllWaysToLogIn(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "### kshare's own login")
	section, _, _ = strings.Cut(section, "\n### ")
	for _, m := range mechanisms() {
		if !strings.Contains(section, "`"+m.name+"`") {
			t.Errorf("README.md does not tell what %s needs", m.name)
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
