//go:build e2e

package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Kafka's command-line tools for share groups, of KAFKA_NEW and unmodified: what they print in a history is compared with
// what they print on Kafka 4.4.0, which is kept in testdata/tools. Names, ids and addresses are replaced by words, and
// columns are one space apart.

// classes of the tools, by the names of their scripts.
var toolClasses = map[string]string{
	"kafka-share-groups":              "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
	"kafka-groups":                    "org.apache.kafka.tools.GroupsCommand",
	"kafka-configs":                   "org.apache.kafka.tools.ConfigCommand",
	"kafka-console-share-consumer":    "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
	"kafka-verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
}

// transcript is a history of commands with their output.
type transcript struct {
	w       *world
	classes string
	words   []string // pairs: what, by which word
	columns []string // likewise, in lines whose columns are one space apart already
	out     strings.Builder
}

func (w *world) transcript() *transcript {
	w.Helper()
	classes, err := suite.KafkaClasses(suite.Version("KAFKA_NEW"))
	if err != nil {
		w.Fatal(err)
	}
	return &transcript{w: w, classes: classes, words: []string{w.group, "GROUP", w.main.name, "TOPIC"}}
}

// call makes a new word for something that is not the same in every run.
func (t *transcript) call(what, word string) { t.words = append([]string{what, word}, t.words...) }

var (
	address    = regexp.MustCompile(`127\.0\.\d+\.\d+:\d+`)
	hostOnly   = regexp.MustCompile(`/127\.0\.\d+\.\d+`)
	spaces     = regexp.MustCompile(`[ \t]+`)
	otherWorld = regexp.MustCompile(`\b[A-Z][a-z]+\w*-[a-z2-7]{8}\b`)
	head       = regexp.MustCompile(`\b(PARTITION|STATE|CONSUMER-ID|STATUS|PROTOCOL)\b`)
	// noise is what logs hold: a line of theirs, of a stack trace, of a list of configs.
	noise = regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d\d\d \[|^at |^[a-z.]+ =( |$)|^org\.apache\.kafka\.common\.errors\.TimeoutException`)
)

// print is the output as it is compared: without what is about groups of other tests, and without group configs that are not
// the same on every upstream (of other kinds of groups) or are kshare's own.
func (t *transcript) print(output string) (lines []string) {
	output = strings.NewReplacer(t.words...).Replace(output)
	output = hostOnly.ReplaceAllString(address.ReplaceAllString(output, "ADDRESS"), "/HOST")
	others := false // a list of another group's configs
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(spaces.ReplaceAllString(line, " "))
		line = strings.NewReplacer(t.columns...).Replace(line)
		foreign := otherWorld.MatchString(line)
		if strings.HasSuffix(line, " are:") {
			others = foreign
		}
		if line != "" && !foreign && !others && !noise.MatchString(line) && !unlike(line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// unlike tells whether a line is about a config that is not on every target.
func unlike(line string) bool {
	key, _, _ := strings.Cut(line, "=")
	return strings.HasPrefix(key, "consumer.") || strings.HasPrefix(key, "streams.") || slices.Contains(allowed().ownConfigs, key)
}

// start runs a tool and books its call only.
func (t *transcript) start(tool string, args ...string) (string, error) {
	fmt.Fprintf(&t.out, "$ %s %s\n", tool, strings.Join(t.print(strings.Join(args, " ")), " "))
	return suite.JavaMain(t.classes, 2*time.Minute, toolClasses[tool], append([]string{"--bootstrap-server", t.w.tg.bootstrap}, args...)...)
}

// run runs a tool and books what it prints; standard error only where the tool fails.
func (t *transcript) run(tool string, args ...string) {
	t.w.Helper()
	out, err := t.start(tool, args...)
	lines := t.print(out)
	switch tool {
	case "kafka-verifiable-share-consumer":
		lines = t.events(lines)
	case "kafka-groups", "kafka-share-groups":
		slices.SortFunc(lines, rows)
		lines = slices.Compact(lines) // with --all-groups each group has a head, those of other tests too
	case "kafka-configs":
		lines = ordered(lines)
	}
	for _, line := range lines {
		fmt.Fprintln(&t.out, line)
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		_, stderr, _ := strings.Cut(err.Error(), "\n")
		stderr, _, _ = strings.Cut(stderr, "\nOption ") // the help
		for _, line := range t.print(stderr) {
			fmt.Fprintln(&t.out, "!", line)
		}
		fmt.Fprintln(&t.out, "exit", exit.ExitCode())
	default:
		t.w.Fatal(err)
	}
	t.out.WriteByte('\n')
}

// rows orders the rows of a table, which come in that of a hash, below their head.
func rows(a, b string) int {
	if a, b := head.MatchString(a), head.MatchString(b); a != b {
		return map[bool]int{true: -1, false: 1}[a]
	}
	return strings.Compare(a, b)
}

// ordered puts the configs of groups, each a head with lines below it, into the order of the heads.
func ordered(lines []string) []string {
	var blocks [][]string
	for _, line := range lines {
		if len(blocks) == 0 || strings.HasSuffix(line, " are:") {
			blocks = append(blocks, nil)
		}
		blocks[len(blocks)-1] = append(blocks[len(blocks)-1], line)
	}
	slices.SortFunc(blocks, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return slices.Concat(blocks...)
}

// events sums up what kafka-verifiable-share-consumer tells in JSON, for how many polls it takes is not the same in every
// run, nor is the order of the last events.
func (t *transcript) events(lines []string) []string {
	t.w.Helper()
	sums := map[string]*event{}
	for _, line := range lines {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.w.Fatalf("%q: %v", line, err)
		}
		key := e.Name
		if e.Success != nil {
			key += fmt.Sprintf(" success=%v", *e.Success)
		}
		sum := sums[key]
		if sum == nil {
			sum = &event{Types: map[string]int{}}
			sums[key] = sum
		}
		sum.Count += e.Count
		for _, p := range e.Partitions {
			sum.offsets = append(sum.offsets, p.Offsets...)
		}
		for kind, n := range e.Types {
			sum.Types[kind] += n
		}
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(sums)) {
		sum := sums[key]
		slices.Sort(sum.offsets)
		out = append(out, fmt.Sprintf("%s count %d offsets %v types %v", key, sum.Count, sum.offsets, sum.Types))
	}
	return out
}

// event is one line of kafka-verifiable-share-consumer.
type event struct {
	Name       string         `json:"name"`
	Count      int            `json:"count"`
	Success    *bool          `json:"success"`
	Types      map[string]int `json:"ackTypeCounts"`
	Partitions []struct {
		Offsets []int64 `json:"offsets"`
	} `json:"partitions"`
	offsets []int64
}

// say books something that is not a tool's doing.
func (t *transcript) say(format string, args ...any) {
	fmt.Fprintf(&t.out, "# "+format+"\n\n", args...)
}

// compare is the end of a history of tools.
func (t *transcript) compare(name string) {
	t.w.Helper()
	t.compareIn("tools", name)
}

// compareIn is the end of a history that is kept in a folder of testdata.
func (t *transcript) compareIn(folder, name string) {
	t.w.Helper()
	file := filepath.Join("testdata", folder, name+".txt")
	if *record {
		if err := os.WriteFile(file, []byte(t.out.String()), 0o644); err != nil {
			t.w.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.w.Fatal(err)
	}
	compareLines(t.w.T, []byte(t.out.String()), want)
}
