package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// layers lists our packages from the bottom up: a package may import only packages of lower lines, never of its own line.
// What is not listed must be a command or a test.
var layers = [][]string{
	{"kshare/sharestate", "kshare/sharestate/statelog", "kshare/proxy/upstream", "kshare/proxy/certs", "kshare/proxy/login"},
	{"kshare/coordinator"},
	{"kshare/proxy/serve"},
	{"kshare/proxy"},
	{"kshare/cmd/kshare"},
}

// TestImportsPointDownOnly keeps the picture of the packages true: nothing calls back up.
func TestImportsPointDownOnly(t *testing.T) {
	layer := map[string]int{}
	for i, names := range layers {
		for _, name := range names {
			layer[name] = i
		}
	}
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "kshare/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		from, known := layer[fields[0]]
		if !known {
			continue
		}
		seen++
		for _, imported := range fields[1:] {
			to, ours := layer[imported]
			if ours && to >= from {
				t.Errorf("%s imports %s, which does not lie below it", fields[0], imported)
			}
		}
		if fields[0] == "kshare/sharestate" && slices.ContainsFunc(fields[1:], notStandard) {
			t.Errorf("the pure core kshare/sharestate imports more than the standard library: %v", fields[1:])
		}
	}
	if want := 9; seen != want {
		t.Errorf("saw %d of our packages, want %d: is the list of layers up to date?", seen, want)
	}
}

func notStandard(path string) bool {
	return strings.Contains(strings.SplitN(path, "/", 2)[0], ".") || strings.HasPrefix(path, "kshare/")
}
