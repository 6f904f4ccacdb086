package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	spdxjson "github.com/spdx/tools-golang/json"
)

const epoch = "1764115200" // 2025-11-26

// released writes the files of a release with one program for two systems, and returns their contents by name.
func released(t *testing.T) map[string][]byte {
	t.Helper()
	t.Chdir("../..")
	bin, out := t.TempDir(), t.TempDir()
	program := filepath.Join(t.TempDir(), "sluice")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./cmd/sluice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, name := range []string{"sluice-linux-arm64", "sluice-windows-amd64.exe"} {
		if err := os.Symlink(program, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(out, "image"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "image", "index.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := parse([]string{"-version", "v9.8.7-rc.6", "-bin", bin, "-out", out}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(o); err != nil {
		t.Fatal(err)
	}
	sums := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	sums.Dir = out
	if text, err := sums.CombinedOutput(); err != nil || !strings.Contains(string(text), "image/index.json: OK") {
		t.Errorf("checksums: %v\n%s", err, text)
	}
	all := map[string][]byte{}
	for _, name := range list(t, out) {
		if all[name], err = os.ReadFile(filepath.Join(out, name)); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// list returns the names of the files in a folder.
func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names
}

func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	all := released(t)
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{
		"SHA256SUMS", "THIRD_PARTY_LICENSES", "sluice-9.8.7-rc.6.tgz", "sluice_v9.8.7-rc.6.cdx.json",
		"sluice_v9.8.7-rc.6.spdx.json",
		"sluice_v9.8.7-rc.6_iptables.cdx.json", "sluice_v9.8.7-rc.6_iptables.spdx.json",
		"sluice_v9.8.7-rc.6_linux_arm64.tar.gz",
		"sluice_v9.8.7-rc.6_manifests.tar.gz", "sluice_v9.8.7-rc.6_windows_amd64.zip",
	}
	if !slices.Equal(names, want) {
		t.Fatalf("the files are %q, want %q", names, want)
	}
	testArchives(t, all)
	testBills(t, all)
	for _, text := range []string{"k8s.io/client-go v", "stdlib 1.", "Apache License", "Copyright (c) "} {
		if !bytes.Contains(all["THIRD_PARTY_LICENSES"], []byte(text)) {
			t.Errorf("THIRD_PARTY_LICENSES has no %q", text)
		}
	}
}

// Archives have the program with its licences. The chart and all manifests name the images of this version.
func testArchives(t *testing.T, all map[string][]byte) {
	t.Helper()
	linux := untar(t, all["sluice_v9.8.7-rc.6_linux_arm64.tar.gz"])
	r, err := zip.NewReader(bytes.NewReader(all["sluice_v9.8.7-rc.6_windows_amd64.zip"]),
		int64(len(all["sluice_v9.8.7-rc.6_windows_amd64.zip"])))
	if err != nil {
		t.Fatal(err)
	}
	var windows []string
	for _, f := range r.File {
		windows = append(windows, fmt.Sprintf("%s %o", f.Name, f.Mode()))
	}
	for _, c := range []struct {
		files        []string
		top, program string
	}{
		{linux.listing, "sluice_v9.8.7-rc.6_linux_arm64/", "sluice"},
		{windows, "sluice_v9.8.7-rc.6_windows_amd64/", "sluice.exe"},
	} {
		want := []string{
			c.top + "CHANGELOG.md 644", c.top + "LICENSE 644", c.top + "README.md 644",
			c.top + "THIRD_PARTY_LICENSES 644", c.top + c.program + " 755",
		}
		if !slices.Equal(c.files, want) {
			t.Errorf("the archive has %q, want %q", c.files, want)
		}
	}
	chart := untar(t, all["sluice-9.8.7-rc.6.tgz"]).contents["sluice/Chart.yaml"]
	if !strings.Contains(chart, "\nversion: 9.8.7-rc.6\nappVersion: v9.8.7-rc.6\n") {
		t.Errorf("the chart is\n%s", chart)
	}
	images := 0
	for name, text := range untar(t, all["sluice_v9.8.7-rc.6_manifests.tar.gz"]).contents {
		for line := range strings.Lines(text) {
			if _, tag, found := strings.Cut(line, "image: ghcr.io/sluice-proxy/sluice"); found {
				images++
				if _, tag, _ = strings.Cut(strings.TrimSpace(tag), ":"); strings.TrimSuffix(tag, "-iptables") != "v9.8.7-rc.6" {
					t.Errorf("%s: %s", name, line)
				}
			}
		}
	}
	if images < 8 {
		t.Errorf("%d images in the manifests", images)
	}
}

// unpacked is an archive.
type unpacked struct {
	listing  []string // path and mode
	contents map[string]string
}

func untar(t *testing.T, archive []byte) unpacked {
	t.Helper()
	files, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	u := unpacked{contents: map[string]string{}}
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return u
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg { // krew refuses links, which kubectl-sluice could be
			t.Errorf("%s is no file", h.Name)
		}
		if h.ModTime.Unix() != 1764115200 || h.Uid != 0 || h.Uname != "" {
			t.Errorf("%s is of %v and belongs to %d %q", h.Name, h.ModTime, h.Uid, h.Uname)
		}
		u.listing, u.contents[h.Name] = append(u.listing, fmt.Sprintf("%s %o", h.Name, h.Mode)), string(content)
	}
}

// Both kinds of bills can be read, and name the modules in the program and the packages in the image.
func testBills(t *testing.T, all map[string][]byte) {
	t.Helper()
	for suffix, debian := range map[string]bool{"": false, "_iptables": true} {
		s, err := spdxjson.Read(bytes.NewReader(all["sluice_v9.8.7-rc.6"+suffix+".spdx.json"]))
		if err != nil {
			t.Fatal(err)
		}
		var c cyclonedx.BOM
		bill := bytes.NewReader(all["sluice_v9.8.7-rc.6"+suffix+".cdx.json"])
		if err := cyclonedx.NewBOMDecoder(bill, cyclonedx.BOMFileFormatJSON).Decode(&c); err != nil {
			t.Fatal(err)
		}
		var inSPDX, inCycloneDX []string
		for _, p := range s.Packages {
			inSPDX = append(inSPDX, p.PackageExternalReferences[0].Locator+" "+p.PackageLicenseDeclared)
		}
		for _, p := range append([]cyclonedx.Component{*c.Metadata.Component}, *c.Components...) {
			licence := "NOASSERTION"
			if p.Licenses != nil {
				licence = (*p.Licenses)[0].Expression
			}
			inCycloneDX = append(inCycloneDX, p.PackageURL+" "+licence)
		}
		if !slices.Equal(inSPDX, inCycloneDX) {
			t.Errorf("SPDX has %q, CycloneDX %q", inSPDX, inCycloneDX)
		}
		text := strings.Join(inSPDX, "\n")
		for _, want := range []string{
			"pkg:golang/github.com/sluice-proxy/sluice@v9.8.7-rc.6 Apache-2.0\n", "pkg:golang/stdlib@1.",
			"pkg:golang/github.com/fsnotify/fsnotify@v1.10.1 BSD-3-Clause",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		if strings.Contains(text, "pkg:deb/debian/iptables@1.8.9-2?arch=arm64") != debian {
			t.Errorf("Debian packages: want %v\n%s", debian, text)
		}
	}
}

// All files of deploy/ and the newest section of CHANGELOG.md name one version.
func TestVersion(t *testing.T) {
	t.Chdir("../..")
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	section := regexp.MustCompile(`(?m)^## (v\S+)`).FindSubmatch(changes)
	if section == nil {
		t.Fatal("CHANGELOG.md has no section of a version")
	}
	files, err := filesIn("deploy", "deploy")
	if err != nil {
		t.Fatal(err)
	}
	o, places := options{version: string(section[1])}, 0
	for _, f := range files {
		places += len(named.FindAll(f.content, -1))
		if got := withVersion(o, f.content); !bytes.Equal(got, f.content) {
			t.Errorf("%s names another version than %s, as CHANGELOG.md has it", f.path, o.version)
		}
		if f.path == "deploy/helm/sluice/Chart.yaml" &&
			!bytes.Contains(f.content, []byte("\nversion: "+o.version[1:]+"\nappVersion: "+o.version+"\n")) {
			t.Errorf("%s has another version than %s:\n%s", f.path, o.version, f.content)
		}
	}
	if places < 8 {
		t.Errorf("%d images in deploy/", places)
	}
}

// Code without a known licence, or with another than the allowed ones, is refused.
func TestLicences(t *testing.T) {
	mit, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"LICENSE", string(mit), ""},
		{"README", string(mit), "no licence is known"},
		{"COPYING", "Do as you like.", "no licence is known"},
		{"LICENSE", "SPDX-License-Identifier: AGPL-3.0\n" + agpl, "the licence AGPL-3.0"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, c.name), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := licensed(module{path: "example.com/m"}, []folder{{dir, filepath.Join(dir)}})
		if c.want == "" && (err != nil || m.licence != "Apache-2.0") ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %.20q: %q, %v, want %q", c.name, c.text, m.licence, err, c.want)
		}
	}
}

const agpl = `This program is free software: you can redistribute it and/or modify it under the terms of ` +
	`the GNU Affero General Public License as
published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.`

func TestBadInput(t *testing.T) {
	for _, c := range []struct{ args, epoch, want string }{
		{"-bin b -out o", epoch, "-version"},
		{"-version 1 -bin b -out o", epoch, "begins with v"},
		{"-version v1 -bin b -out o", "now", "SOURCE_DATE_EPOCH=now"},
	} {
		if _, err := parse(strings.Fields(c.args), c.epoch); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %q: %v, want %q", c.args, c.epoch, err, c.want)
		}
	}
	if err := write(options{bin: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "run make build-all") {
		t.Errorf("without programs: %v", err)
	}
}
