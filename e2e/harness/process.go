//go:build e2e

package harness

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a child process. Its standard error goes to a log file; its standard
// output too, and line by line to whoever asks.
type Process struct {
	Name  string
	Log   string
	Stdin io.WriteCloser
	Lines <-chan string // standard output; closed at its end

	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start runs a command. The child dies with this process, whatever ends it.
func (s *Suite) Start(name string, env []string, command string, args ...string) (*Process, error) {
	log := filepath.Join(s.Dir, name+".log")
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(command, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = s.Root
	cmd.Stderr = file
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		file.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	lines := make(chan string, 64)
	p := &Process{Name: name, Log: log, Stdin: stdin, Lines: lines, cmd: cmd, done: make(chan struct{})}
	go func() {
		copyLines(stdout, lines)
		p.err = cmd.Wait()
		file.Close()
		close(p.done)
	}()
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.mu.Unlock()
	return p, nil
}

func copyLines(from io.Reader, to chan<- string) {
	defer close(to)
	sc := bufio.NewScanner(from)
	sc.Buffer(nil, 64<<20)
	for sc.Scan() {
		to <- sc.Text()
	}
	io.Copy(io.Discard, from) // an overlong line must not block the child
}

// Discard reads standard output away, for a process nobody listens to.
func (p *Process) Discard() *Process {
	go func() {
		for range p.Lines {
		}
	}()
	return p
}

// Pid of the child.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Running tells whether the child is alive.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends the child at once (SIGKILL) and waits for it.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	p.await(10 * time.Second)
}

// Stop asks the child to end (SIGTERM) and kills it after the grace period.
func (p *Process) Stop(grace time.Duration) error {
	p.cmd.Process.Signal(syscall.SIGTERM)
	if !p.await(grace) {
		p.Kill()
		return fmt.Errorf("%s did not end within %v of SIGTERM", p.Name, grace)
	}
	return nil
}

func (p *Process) await(d time.Duration) bool {
	go func() { // unblock copyLines when nobody reads any more
		for range p.Lines {
		}
	}()
	select {
	case <-p.done:
		return true
	case <-time.After(d):
		return false
	}
}

// Err tells how a child ended, with the end of its log.
func (p *Process) Err() error {
	p.await(5 * time.Second)
	return fmt.Errorf("%s ended (%v):\n%s", p.Name, p.err, tailOf(p.Log, 15))
}

// Output runs a command to its end and returns standard output; the error carries
// standard error.
func (s *Suite) Output(timeout time.Duration, env []string, command string, args ...string) (string, error) {
	var out, errs strings.Builder
	cmd := exec.Command(command, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = s.Root
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	timer := time.AfterFunc(timeout, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", filepath.Base(command), strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// PeakRSS is the most memory the child ever held resident, in bytes (VmHWM).
func (p *Process) PeakRSS() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("no VmHWM for pid %d", p.Pid())
}

// clockTick is the unit of processor times under /proc: USER_HZ is 100 on every
// architecture that Go runs on.
const clockTick = 10 * time.Millisecond

// ProcessorTime is what the child has used so far, in user and system mode.
func (p *Process) ProcessorTime() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		return 0, err
	}
	// The second field is the name in parentheses, which may hold anything.
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", p.Pid(), b)
	}
	var ticks int64
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", p.Pid(), err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}
