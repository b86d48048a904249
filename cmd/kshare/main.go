// Command kshare is a proxy that gives share groups (KIP-932, "queues for Kafka") to Kafka clusters that do not have them.
//
// It is a thin shell: it reads the configuration, builds the packages that do the work, connects them, and takes them down in order.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

// Exit codes. Scripts rely on them.
const (
	exitOK    = 0
	exitError = 1 // something did not work
	exitUsage = 2 // what the operator gave is wrong; one line on standard error says what and how to put it right
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run carries out one command line and returns its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage(""))
		return exitUsage
	}
	name, rest := args[0], args[1:]
	if name == "-h" || name == "--help" || name == "-help" {
		name = "help"
	}
	cmd, known := commandOf(name)
	if !known {
		fmt.Fprintf(stderr, "kshare: unknown command %q%s\n", name, didYouMeanCommand(name))
		return exitUsage
	}
	err := cmd.run(rest, stdout, stderr)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage(cmd.name))
		return exitOK
	case asConfigError(err):
		fmt.Fprintf(stderr, "kshare: %v\n", err)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "kshare: %v\n", err)
		return exitError
	}
}
