package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// inputs is what a configuration is made of; tests and the fuzzer give their own.
type inputs struct {
	args     []string
	environ  []string // NAME=value
	readFile func(name string) ([]byte, error)
}

func processInputs(args []string) inputs {
	return inputs{args: args, environ: os.Environ(), readFile: os.ReadFile}
}

// load builds the configuration of one command: flags over environment over YAML file over defaults. extra adds the flags that only
// this command has. All errors but flag.ErrHelp are configErrors.
func load(in inputs, extra func(*flag.FlagSet)) (Config, error) {
	given, configFlag, err := parseFlags(in.args, extra)
	if err != nil {
		return Config{}, err
	}
	env, configEnv, err := readEnv(in.environ)
	if err != nil {
		return Config{}, err
	}
	var file []assignment
	if name := firstOf(configFlag, configEnv); name != "" {
		if file, err = readYAML(name, in.readFile); err != nil {
			return Config{}, err
		}
	}
	c := defaults()
	for _, a := range slices.Concat(file, env, given) { // later wins
		if err := a.apply(&c); err != nil {
			return Config{}, err
		}
	}
	return c, c.validate()
}

// assignment is one value for one key, and where it was found.
type assignment struct {
	key, value, source string
}

// isText says whether a value can be written, shown and read again.
func isText(v string) bool {
	return utf8.ValidString(v) && !strings.ContainsFunc(v, func(r rune) bool { return !unicode.IsPrint(r) && !unicode.IsSpace(r) })
}

func (a assignment) apply(c *Config) error {
	s, ok := settingOf(a.key)
	if !ok {
		return &configError{key: a.key, source: a.source, problem: "unknown key" + didYouMean(a.key, settingKeys())}
	}
	if strings.TrimSpace(a.value) == "" && a.key != "broker-config" {
		return &configError{key: a.key, source: a.source, problem: "has no value, give one or leave the key away"}
	}
	if a.key == "broker-config" && a.value == "" {
		return nil
	}
	if !isText(a.value) {
		return &configError{key: a.key, source: a.source, problem: "holds bytes that are no text, write it anew in UTF-8"}
	}
	if err := s.set(c, a.value); err != nil {
		return &configError{key: a.key, source: a.source, problem: err.Error()}
	}
	if a.key == "broker-config" {
		name, _, _ := strings.Cut(strings.TrimSpace(a.value), "=")
		c.origin[name] = a.source
	}
	c.origin[a.key] = a.source
	return nil
}

func parseFlags(args []string, extra func(*flag.FlagSet)) (given []assignment, configFile string, err error) {
	fs := flag.NewFlagSet("kshare", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&configFile, "config", "", "")
	var shown error // a secret that is one no more
	for _, s := range settings {
		if s.noFlag {
			fs.Func(s.key, "", func(string) error {
				shown = &configError{key: s.key, source: "flag --" + s.key, problem: fmt.Sprintf(
					"must not be a flag, which other users of the machine can see; set %s, or name a file that holds it with %s-file", s.env(), s.key)}
				return nil
			})
			continue
		}
		fs.Func(s.key, "", func(v string) error {
			given = append(given, assignment{s.key, v, "flag --" + s.key})
			return nil
		})
	}
	if extra != nil {
		extra(fs)
	}
	if err := fs.Parse(args); err != nil {
		return nil, "", flagError(err, fs)
	}
	if shown != nil {
		return nil, "", shown
	}
	if fs.NArg() > 0 {
		name, _, _ := strings.Cut(fs.Arg(0), "=") // what follows may be a secret
		return nil, "", &configError{problem: fmt.Sprintf("unexpected argument %q, flags are written --key=value or --key value", name)}
	}
	return given, configFile, nil
}

// flagError says what package flag found in the words of this program.
func flagError(err error, fs *flag.FlagSet) error {
	if err == flag.ErrHelp {
		return err
	}
	var known []string
	fs.VisitAll(func(f *flag.Flag) { known = append(known, f.Name) })
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		name = strings.TrimPrefix(name, "-")
		return &configError{problem: "unknown flag --" + name + didYouMeanFlag(name, known)}
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
		return &configError{problem: "flag --" + strings.TrimPrefix(name, "-") + " needs a value"}
	}
	return &configError{problem: text}
}

// serviceLink matches what Kubernetes puts into every pod's environment for a service whose name starts with kshare: nobody meant it
// for us, and failing on it would make such a service impossible.
var serviceLink = regexp.MustCompile(`^KSHARE_([A-Z0-9_]*_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=|^KSHARE_([A-Z0-9_]*_)?PORT=(tcp|udp|sctp)://`)

func readEnv(environ []string) (found []assignment, configFile string, err error) {
	byName := map[string]string{}
	names := []string{"KSHARE_CONFIG"}
	for _, s := range settings {
		byName[s.env()] = s.key
		names = append(names, s.env())
	}
	for _, line := range environ {
		if !strings.HasPrefix(line, "KSHARE_") || serviceLink.MatchString(line) {
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		key, known := byName[name]
		switch {
		case name == "KSHARE_CONFIG":
			configFile = value
		case !known:
			return nil, "", &configError{key: name, source: "environment", problem: "unknown key" + didYouMean(name, names)}
		case key == "broker-config": // several pairs in one variable
			for pair := range strings.SplitSeq(value, ",") {
				found = append(found, assignment{key, pair, "environment " + name})
			}
		default:
			found = append(found, assignment{key, value, "environment " + name})
		}
	}
	return found, configFile, nil
}

func settingKeys() []string {
	keys := make([]string, len(settings))
	for i, s := range settings {
		keys[i] = s.key
	}
	return keys
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
