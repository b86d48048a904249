package login

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAPasswordFileIsReadAtEachLogin(t *testing.T) {
	name := filepath.Join(t.TempDir(), "password")
	m := Plain("u", File(name))
	first := func() (string, error) {
		_, bytes, err := m.Authenticate(context.Background(), "broker:9092")
		return string(bytes), err
	}
	if _, err := first(); !errors.Is(err, ErrNoCredentials) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), name) {
		t.Errorf("without a file: %v", err)
	}
	for text, want := range map[string]string{"one\n": "\x00u\x00one", " two words \r\n": "\x00u\x00two words"} {
		write(t, name, text)
		if got, err := first(); err != nil || got != want {
			t.Errorf("%q leads to %q, %v", text, got, err)
		}
	}
	write(t, name, "\n")
	if _, err := first(); !errors.Is(err, ErrNoCredentials) || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("with an empty file: %v", err)
	}
}
