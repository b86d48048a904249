package main

import (
	"fmt"
	"io"
	"runtime/debug"
	"strings"
)

// command is one of kshare's commands.
type command struct {
	name    string
	summary string
	flags   []string // lines about flags that only this command has
	keys    bool     // takes all keys of the configuration
	run     func(args []string, stdout, stderr io.Writer) error
}

func commands() []command {
	return []command{
		{name: "serve", summary: "serve share groups for a Kafka cluster, with the state in Redis", keys: true, run: serveCommand},
		{name: "dev", summary: "the same on an embedded cluster and Redis, nothing to install", keys: true, run: devCommand, flags: []string{
			"  --replicas N               kshare replicas to start, each 1000 ports above the one before (default 2)",
			"  --demo                     add traffic, show what happens to it, check the counts and end"}},
		{name: "check", summary: "validate a configuration and print what is in effect, without secrets", keys: true, run: checkCommand},
		{name: "healthcheck", summary: "ask a running replica whether it is ready (exit code 0 or 1)", keys: true, run: healthcheckCommand},
		{name: "version", summary: "print the version", run: versionCommand},
		{name: "help", summary: "print this, or `kshare help COMMAND` for its flags", run: helpCommand},
	}
}

func commandOf(name string) (command, bool) {
	for _, c := range commands() {
		if c.name == name {
			return c, true
		}
	}
	return command{}, false
}

func didYouMeanCommand(name string) string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	if best := nearest(name, names); best != "" {
		return `, did you mean "kshare ` + best + `"?`
	}
	return ", `kshare help` lists all commands"
}

// usage is the help text of one command, or of kshare as a whole.
func usage(name string) string {
	var b strings.Builder
	c, known := commandOf(name)
	if !known || c.name == "help" {
		b.WriteString("kshare gives Kafka share groups (KIP-932) to clusters that do not have them.\n\nusage: kshare COMMAND [flags]\n\n")
		for _, c := range commands() {
			fmt.Fprintf(&b, "  %-12s %s\n", c.name, c.summary)
		}
		b.WriteString("\nTry it: kshare dev --demo\n")
		return b.String()
	}
	fmt.Fprintf(&b, "kshare %s: %s\n", c.name, c.summary)
	if !c.keys {
		return b.String()
	}
	fmt.Fprintf(&b, "\nusage: kshare %s [--config kshare.yaml] [flags]\n\n", c.name)
	for _, line := range c.flags {
		b.WriteString(line + "\n")
	}
	b.WriteString("  --config FILE              YAML file (KSHARE_CONFIG)\n")
	d := defaults()
	for _, s := range settings {
		if c.name == "dev" && embedded(s.key) {
			continue
		}
		fmt.Fprintf(&b, "  %-26s %s (%s%s)\n", s.title(), s.meaning, s.env(), defaultNote(s.get(&d)))
	}
	b.WriteString("\nEach flag is also a key of the YAML file. Flags win over the environment, the environment over the file. Keys without dashes are\nsecrets and no flags.\n")
	return b.String()
}

func defaultNote(value string) string {
	if value == "" {
		return ""
	}
	return ", default " + value
}

func helpCommand(args []string, stdout, _ io.Writer) error {
	name := ""
	if len(args) > 0 {
		name = args[0]
		if _, known := commandOf(name); !known {
			return &configError{problem: fmt.Sprintf("unknown command %q%s", name, didYouMeanCommand(name))}
		}
	}
	_, err := io.WriteString(stdout, usage(name))
	return err
}

// version is set by the linker in released builds.
var version = ""

func versionCommand(args []string, stdout, _ io.Writer) error {
	if len(args) > 0 {
		return &configError{problem: fmt.Sprintf("unexpected argument %q", args[0])}
	}
	_, err := fmt.Fprintln(stdout, "kshare", versionText())
	return err
}

// versionText is the released version, or what the build recorded about the source.
func versionText() string {
	info, ok := debug.ReadBuildInfo()
	if version != "" || !ok {
		return firstOf(version, "unknown")
	}
	text := firstOf(strings.Trim(info.Main.Version, "()"), "devel")
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 && !strings.Contains(text, s.Value[:12]) {
			text += " " + s.Value[:12]
		}
	}
	return text + " " + info.GoVersion
}
