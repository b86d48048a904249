package main

import (
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// checkCommand validates a configuration without connecting to anything and prints what would be in effect.
func checkCommand(args []string, stdout, _ io.Writer) error {
	c, err := load(processInputs(args), nil)
	if err != nil {
		return err
	}
	text, err := effectiveYAML(&c)
	if err != nil {
		return err
	}
	_, err = stdout.Write(text)
	return err
}

// effectiveYAML is the whole configuration as a file that could be given back (but for the secrets, which are hidden), each value with
// a comment on where it comes from.
func effectiveYAML(c *Config) ([]byte, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	add := func(m *yaml.Node, key string, value *yaml.Node, comment string) {
		value.LineComment = comment
		m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
	}
	for _, s := range settings {
		if s.key == "broker-config" || s.get(c) == "" {
			continue
		}
		add(root, s.key, scalar(s.get(c)), firstOf(c.origin[s.key], "default"))
	}
	broker, err := c.broker()
	if err != nil {
		return nil, err
	}
	brokers := &yaml.Node{Kind: yaml.MappingNode}
	for _, s := range broker.All() {
		add(brokers, s.Key, scalar(s.Value), firstOf(c.origin[s.Key], "default"))
	}
	add(root, "broker-config", brokers, "")
	var b strings.Builder
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return nil, fmt.Errorf("print the configuration: %w", err)
	}
	return []byte(b.String()), encoder.Close()
}

// scalar quotes only what would not read back as the same text.
func scalar(v string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: v}
	if v == "" {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}
