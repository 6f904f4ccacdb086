package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// atOnce is how many steps run at a time, not counting steps that mostly wait: one computes while another waits.
const atOnce = 2

// progressEvery is the time between lines of progress.
const progressEvery = 30 * time.Second

// runner runs the steps of a run.
type runner struct {
	title string
	notes []string // for people, at the start and at the end
	env   []string // of the steps, in addition to the environment of this process
	sum   *summary
	times *times

	began   time.Time
	steps   int
	waiting []step
	running map[string]*runningStep
	ended   map[string]bool // whether the step succeeded
}

// runningStep is a step whose command runs.
type runningStep struct {
	step
	began   time.Time
	results *results
}

// message is a line of output of a step, or its end.
type message struct {
	step  string
	line  string
	ended bool
	err   error // why the command failed, if it ended
}

// run runs all steps. It returns an error if a step could not be run, or if ctx ends.
func (r *runner) run(ctx context.Context, steps []step) error {
	r.began, r.steps, r.waiting = time.Now(), len(steps), slices.Clone(steps)
	r.running, r.ended = map[string]*runningStep{}, map[string]bool{}
	r.announce(steps)
	messages := make(chan message)
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		r.refuse()
		for s := r.next(); s != nil; s = r.next() {
			r.start(ctx, *s, messages)
		}
		if len(r.running) == 0 {
			break
		}
		select {
		case m := <-messages:
			r.receive(m)
		case now := <-ticker.C:
			r.progress(now)
		}
	}
	if ctx.Err() != nil {
		r.sum.print()
		return errors.New("interrupted")
	}
	return r.finish()
}

// announce lists the steps with their last durations.
func (r *runner) announce(steps []step) {
	r.sum.printf("%s: %d steps, %d at a time; last time they took %s\n", r.title, len(steps), atOnce, r.last(r.title))
	for _, s := range steps {
		r.sum.printf("  %-12s %9s  %s\n", s.name, r.last(r.title+": "+s.name), s.about)
	}
	r.note()
}

func (r *runner) note() {
	for _, n := range r.notes {
		r.sum.printf("%s\n", n)
	}
}

// last returns the duration of an earlier run as text.
func (r *runner) last(key string) string {
	if d, known := r.times.known[key]; known {
		return d.Round(time.Second).String()
	}
	return "?"
}

// refuse ends the steps that need one that failed.
func (r *runner) refuse() {
	r.waiting = slices.DeleteFunc(r.waiting, func(s step) bool {
		for _, name := range s.after {
			if succeeded, ended := r.ended[name]; ended && !succeeded {
				r.ended[s.name] = false
				newResults(s.name, r.sum).end(fmt.Errorf("not run: it needs %s, which failed", name))
				return true
			}
		}
		return false
	})
}

// next removes the next step to start from the waiting ones. It returns nil if none can start now.
func (r *runner) next() *step {
	if r.isAlone() {
		return nil
	}
	full := r.computing() >= atOnce
	for i, s := range r.waiting {
		ready := !slices.ContainsFunc(s.after, func(name string) bool { return !r.ended[name] })
		if !ready || full && !s.waits || s.alone && len(r.running) > 0 {
			continue
		}
		r.waiting = slices.Delete(r.waiting, i, i+1)
		return &s
	}
	return nil
}

// computing returns how many steps are running that compute.
func (r *runner) computing() (n int) {
	for _, s := range r.running {
		if !s.waits {
			n++
		}
	}
	return n
}

// isAlone reports whether a step is running that runs alone.
func (r *runner) isAlone() bool {
	for _, s := range r.running {
		if s.alone {
			return true
		}
	}
	return false
}

func (r *runner) start(ctx context.Context, s step, messages chan<- message) {
	r.running[s.name] = &runningStep{s, time.Now(), newResults(s.name, r.sum)}
	env := slices.Concat(os.Environ(), r.env)
	go func() {
		packages, err := r.list(ctx, s)
		if err == nil {
			err = command(ctx, strings.Join(append([]string{s.command}, packages...), " "), env, func(line string) {
				messages <- message{step: s.name, line: line}
			})
		}
		messages <- message{step: s.name, ended: true, err: err}
	}()
}

func (r *runner) receive(m message) {
	s := r.running[m.step]
	if !m.ended {
		s.results.line(m.line)
		return
	}
	s.results.end(m.err)
	took := time.Since(s.began)
	delete(r.running, m.step)
	r.ended[m.step] = m.err == nil
	if m.err == nil {
		r.times.known[r.title+": "+m.step] = took
	}
	r.sum.printf("--- %s: %s, %s (step %d of %d)\n", m.step, result(m.err), took.Round(time.Second), len(r.ended), r.steps)
}

func result(err error) string {
	if err != nil {
		return err.Error()
	}
	return "done"
}

// progress prints a line of progress.
func (r *runner) progress(now time.Time) {
	left := "nothing known about the time left"
	if total, known := r.times.known[r.title]; known {
		left = fmt.Sprintf("about %s left", max(total-now.Sub(r.began), 0).Round(time.Minute/2))
	}
	r.sum.printf("... %s: %d of %d steps done, running %s; %s; %s\n", now.Sub(r.began).Round(time.Second),
		len(r.ended), r.steps, strings.Join(slices.Sorted(maps.Keys(r.running)), " and "), r.sum.counts, left)
}

// finish prints the sum and records the durations.
func (r *runner) finish() error {
	took := time.Since(r.began)
	r.times.known[r.title] = took
	maps.Copy(r.times.known, r.sum.durations())
	r.sum.printf("\n%s took %s\n", r.title, took.Round(time.Second))
	r.note()
	r.sum.print()
	return r.times.write()
}

// list returns the packages of a step, those first that took longest the last time.
func (r *runner) list(ctx context.Context, s step) ([]string, error) {
	var in, out []string
	for _, pattern := range s.packages {
		if pattern, found := strings.CutPrefix(pattern, "-"); found {
			out = append(out, pattern)
		} else {
			in = append(in, pattern)
		}
	}
	packages, err := tested(ctx, in, s.importing)
	if err != nil {
		return nil, err
	}
	left, err := tested(ctx, out, "")
	if err != nil {
		return nil, err
	}
	packages = slices.DeleteFunc(packages, func(p string) bool { return slices.Contains(left, p) })
	slices.SortStableFunc(packages, func(a, b string) int {
		return cmp.Compare(r.times.known[s.name+" "+b], r.times.known[s.name+" "+a])
	})
	return packages, nil
}

// tested returns the packages that match patterns and have tests that import a package; any tests if that is empty.
func tested(ctx context.Context, patterns []string, importing string) ([]string, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	const format = `{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} ` +
		`{{join .TestImports " "}} {{join .XTestImports " "}}{{end}}`
	list, err := exec.CommandContext(ctx, "go", append([]string{"list", "-f", format}, patterns...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages of %s: %w", patterns, err)
	}
	var packages []string
	for line := range strings.Lines(string(list)) {
		if names := strings.Fields(line); len(names) > 0 && (importing == "" || slices.Contains(names[1:], importing)) {
			packages = append(packages, names[0])
		}
	}
	return packages, nil
}

// command runs a command by a shell, in a process group of its own, and passes on each line of its output. When ctx
// ends, it ends the group.
func command(ctx context.Context, text string, env []string, line func(string)) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", text)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	r, w, err := os.Pipe() // closed by the last process that has it
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer func() { _ = r.Close() }()
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("run sh: %w", err)
	}
	read := lines(r, line)
	return errors.Join(cmd.Wait(), read)
}

func lines(r io.Reader, each func(string)) error {
	from := bufio.NewReader(r)
	for {
		line, err := from.ReadString('\n')
		if line != "" {
			each(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the output: %w", err)
		}
	}
}
