package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// healthcheckCommand is for container images without a shell: it asks /readyz of the replica that has the same configuration.
func healthcheckCommand(args []string, stdout, _ io.Writer) error {
	c, err := load(processInputs(args), nil)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Get("http://" + reachable(c.HTTP) + "/readyz")
	if err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	text := strings.Join(strings.Fields(string(body)), " ")
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", firstOf(text, response.Status))
	}
	_, err = fmt.Fprintln(stdout, text)
	return err
}

// reachable turns the address of a listener on all interfaces into one that can be dialled.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port)
}
