package drive

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
)

func writeText(w io.Writer, list []Finding) error {
	for _, f := range list {
		if _, err := fmt.Fprintf(w, "%s:%d:%d: %s: %s\n", f.File, f.Line, f.Column, f.ID, f.Message); err != nil {
			return err
		}
	}
	return nil
}

// writeGitHub writes workflow commands, which GitHub shows beside the lines.
func writeGitHub(w io.Writer, list []Finding) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, f := range list {
		if _, err := fmt.Fprintf(w, "::error file=%s,line=%d,col=%d,title=%s::%s\n", property.Replace(f.File), f.Line, f.Column, f.ID, data.Replace(f.Message)); err != nil {
			return err
		}
	}
	return nil
}

// The parts of SARIF 2.1.0 that are written. Columns are bytes, which are its UTF-16
// units in lines of ASCII.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool       sarifTool     `json:"tool"`
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID            string       `json:"id"`
		Name          string       `json:"name"`
		Short         sarifText    `json:"shortDescription"`
		Full          sarifText    `json:"fullDescription"`
		Configuration sarifEnabled `json:"defaultConfiguration"`
	}
	sarifEnabled struct {
		Enabled bool   `json:"enabled"`
		Level   string `json:"level"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID       string            `json:"ruleId"`
		RuleIndex    int               `json:"ruleIndex"`
		Level        string            `json:"level"`
		Message      sarifText         `json:"message"`
		Locations    []sarifLocation   `json:"locations"`
		Fingerprints map[string]string `json:"partialFingerprints"`
		Fixes        []sarifFix        `json:"fixes,omitempty"`
	}
	sarifLocation struct {
		Physical sarifPhysical `json:"physicalLocation"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   sarifRegion   `json:"region"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine   int `json:"startLine"`
		StartColumn int `json:"startColumn"`
		EndLine     int `json:"endLine,omitempty"`
		EndColumn   int `json:"endColumn,omitempty"`
	}
	sarifFix struct {
		Description sarifText     `json:"description"`
		Changes     []sarifChange `json:"artifactChanges"`
	}
	sarifChange struct {
		Artifact     sarifArtifact      `json:"artifactLocation"`
		Replacements []sarifReplacement `json:"replacements"`
	}
	sarifReplacement struct {
		Deleted  sarifRegion `json:"deletedRegion"`
		Inserted sarifText   `json:"insertedContent"`
	}
)

func writeSARIF(w io.Writer, list []Finding) error {
	driver := sarifDriver{Name: check.Name, InformationURI: "https://github.com/seed-63e9a637/jetbus"}
	index := make(map[string]int)
	for i, r := range check.Rules() {
		index[r.ID] = i
		driver.Rules = append(driver.Rules, sarifRule{r.ID, camel(r.Name), sarifText{r.Name}, sarifText{r.Help}, sarifEnabled{r.Default, "error"}})
	}
	results := []sarifResult{}
	same := make(map[place]int)
	for _, f := range list {
		p := place{f.File, f.ID, f.Message}
		same[p]++
		results = append(results, sarifResult{
			RuleID: f.ID, RuleIndex: index[f.ID], Level: "error", Message: sarifText{f.Message},
			Locations:    []sarifLocation{{sarifPhysical{uri(f.File), sarifRegion{StartLine: f.Line, StartColumn: f.Column}}}},
			Fingerprints: map[string]string{"topiclint/v1": fingerprint(p, same[p])},
			Fixes:        fixes(f),
		})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(sarifLog{
		Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0",
		Runs: []sarifRun{{sarifTool{driver}, "utf16CodeUnits", results}},
	})
}

func uri(file string) sarifArtifact { return sarifArtifact{(&url.URL{Path: file}).EscapedPath()} }

func fixes(f Finding) []sarifFix {
	if len(f.edits) == 0 {
		return nil
	}
	change := sarifChange{Artifact: uri(f.File)} // edits are in the file of their finding
	for _, e := range f.edits {
		change.Replacements = append(change.Replacements, sarifReplacement{
			sarifRegion{e.line, e.column, e.endLine, e.endColumn}, sarifText{e.text},
		})
	}
	return []sarifFix{{sarifText{"write it as the bus takes it"}, []sarifChange{change}}}
}

// fingerprint tells findings apart that are alike, and stays when lines move.
func fingerprint(p place, n int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d", p.Check, p.File, p.Message, n))
	return hex.EncodeToString(sum[:16])
}

// camel is a rule's name as SARIF wants it: InvalidTopic.
func camel(name string) string {
	var b strings.Builder
	for word := range strings.FieldsSeq(name) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}
