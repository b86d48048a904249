package main

import (
	"errors"
	"fmt"
	"strings"

	"kshare/proxy/login"
)

// hidden is what is shown in place of a secret.
const hidden = "(secret)"

// secretText is a value that is shown by nothing that prints it.
type secretText string

func (s secretText) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString is for %#v.
func (s secretText) GoString() string { return s.String() }

// MarshalText is for JSON, and so for the log.
func (s secretText) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// secretValue is a secret that is given as it is, or by the name of a file that holds it. Package fmt asks exported fields
// alone how they want to be shown.
type secretValue struct {
	Text secretText
	File string
}

func (s secretValue) given() bool { return s.Text != "" || s.File != "" }

func (s secretValue) source() login.Secret {
	if s.File != "" {
		return login.File(s.File)
	}
	return login.Text(string(s.Text))
}

// secretSettings are the two keys of one secret: its value, which is no flag, and a file.
func secretSettings(key, meaning string, field func(*Config) *secretValue) []setting {
	return []setting{
		{key: key, arg: "SECRET", meaning: meaning + "; not as a flag", secret: true, noFlag: true,
			set: func(c *Config, v string) error {
				if v == hidden {
					return errors.New("is what `kshare check` shows in place of the secret, give the secret itself")
				}
				field(c).Text = secretText(v)
				return nil
			},
			get: func(c *Config) string { return field(c).Text.String() }},
		textSetting(key+"-file", "FILE", "file that holds "+key+", read again whenever it is needed", func(c *Config) *string { return &field(c).File }),
	}
}

// validateSecret refuses a secret that is given twice.
func (c *Config) validateSecret(key string, s secretValue) error {
	if s.Text != "" && s.File != "" {
		return &configError{key: key + "-file", source: c.origin[key+"-file"], problem: fmt.Sprintf(
			"%s is given too (from %s), leave one of them away", key, c.origin[key])}
	}
	return nil
}

// probeFile finds out at start whether the file of a secret can be read.
func probeFile(key, name string) error {
	if name == "" {
		return nil
	}
	if _, err := login.File(name)(); err != nil {
		return &configError{key: key, problem: "cannot be used: " + strings.TrimPrefix(err.Error(), "open ")}
	}
	return nil
}
