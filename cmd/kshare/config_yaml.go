package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// readYAML reads a configuration file into assignments. It works on the node tree, so that every error can name the line and the key,
// and nothing of a value is quoted by the parser.
//
// A section is a prefix: `cache: {bytes: 1GiB}` and `cache-bytes: 1GiB` are the same.
func readYAML(name string, readFile func(string) ([]byte, error)) ([]assignment, error) {
	text, err := readFile(name)
	if err != nil {
		return nil, &configError{key: "config", problem: "cannot read the file, check its name and rights: " + reason(err)}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil // an empty file
	case err != nil:
		problem := anchorName.ReplaceAllString(err.Error(), "anchor")
		if problem != err.Error() {
			problem += ", put a value that begins with a star in quotes"
		}
		return nil, &configError{key: "config", source: name, problem: "not valid YAML: " + problem}
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, &configError{key: "config", source: name, problem: "more than one YAML document, leave one"}
	}
	r := yamlReader{file: name, seen: map[string]bool{}}
	if root := document.Content[0]; root.Tag != "!!null" {
		err = r.section("", root)
	}
	return r.found, err
}

// anchorName is all of a file's text that the parser quotes: of a value without quotes that begins with a star.
var anchorName = regexp.MustCompile(`anchor '[^']*'`)

// reason is the system's word for why a file cannot be read ("no such file or directory"), with the name that was tried.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return fmt.Sprintf("%s: %v", pe.Path, pe.Err)
	}
	return err.Error()
}

type yamlReader struct {
	file  string
	found []assignment
	seen  map[string]bool
}

func (r *yamlReader) at(n *yaml.Node) string { return r.file + ":" + strconv.Itoa(n.Line) }

func (r *yamlReader) fail(n *yaml.Node, key, problem string) error {
	return &configError{key: key, source: r.at(n), problem: problem}
}

func (r *yamlReader) section(prefix string, n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return r.fail(n, "config", "the file must be a mapping of keys to values, such as `listen: 127.0.0.1:19092`")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if err := r.entry(prefix, n.Content[i], n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (r *yamlReader) entry(prefix string, name, value *yaml.Node) error {
	key := prefix + name.Value
	if name.Kind != yaml.ScalarNode || name.Tag == "!!merge" {
		return r.fail(name, "config", "a key must be a plain word")
	}
	if r.seen[key] {
		return r.fail(name, key, "given twice, leave one")
	}
	r.seen[key] = true
	_, known := settingOf(key)
	switch {
	case key == "broker-config":
		return r.brokerConfigs(key, value)
	case known && value.Kind == yaml.ScalarNode && value.Tag != "!!null":
		r.found = append(r.found, assignment{key, value.Value, r.at(value)})
		return nil
	case known && key == "upstream" && value.Kind == yaml.SequenceNode:
		return r.seeds(key, value)
	case known:
		return r.fail(value, key, "has no plain value, write "+key+": VALUE")
	case value.Kind == yaml.MappingNode && prefix == "" && isSection(key):
		return r.section(key+"-", value)
	}
	return r.fail(name, key, "unknown key"+didYouMean(key, settingKeys()))
}

func (r *yamlReader) seeds(key string, n *yaml.Node) error {
	if len(n.Content) == 0 {
		return r.fail(n, key, "has no plain value, write "+key+": VALUE")
	}
	joined := ""
	for i, item := range n.Content {
		if item.Kind != yaml.ScalarNode {
			return r.fail(item, key, "each entry must be host:port")
		}
		if i > 0 {
			joined += ","
		}
		joined += item.Value
	}
	r.found = append(r.found, assignment{key, joined, r.at(n)})
	return nil
}

// brokerConfigs takes a mapping of Kafka's names to values; dots in names are part of the names.
func (r *yamlReader) brokerConfigs(key string, n *yaml.Node) error {
	if n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return r.fail(n, key, "must be a mapping, such as `group.share.delivery.count.limit: 7`")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		switch {
		case name.Kind != yaml.ScalarNode || value.Kind != yaml.ScalarNode || value.Tag == "!!null":
			return r.fail(name, key, fmt.Sprintf("%q must have one plain value", name.Value))
		case seen[name.Value]:
			return r.fail(name, key, fmt.Sprintf("%q is given twice, leave one", name.Value))
		}
		seen[name.Value] = true
		r.found = append(r.found, assignment{key, name.Value + "=" + value.Value, r.at(value)})
	}
	return nil
}

// isSection says whether some key starts with name and a dash.
func isSection(name string) bool {
	for _, s := range settings {
		if len(s.key) > len(name) && s.key[:len(name)] == name && s.key[len(name)] == '-' {
			return true
		}
	}
	return false
}
