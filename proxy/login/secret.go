package login

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Secret gives a password or a token at the time of a login. Being a function, it shows nothing when it is printed.
type Secret func() (string, error)

// Text is a Secret that stays as it is.
func Text(value string) Secret { return func() (string, error) { return value, nil } }

// File is a Secret that is read from a file each time, without the white space around it. An error names the file.
func File(name string) Secret {
	return func() (string, error) {
		text, err := os.ReadFile(name) // #nosec G304 -- the operator names it
		if err != nil {
			return "", err
		}
		value := strings.TrimSpace(string(text))
		if value == "" {
			return "", fmt.Errorf("%s is empty", name)
		}
		return value, nil
	}
}

// ErrNoCredentials: what is needed for a login could not be had, so that upstream was not even asked.
var ErrNoCredentials = errors.New("no credentials for kshare's login")

func noCredentials(err error) error { return fmt.Errorf("%w: %w", ErrNoCredentials, err) }
