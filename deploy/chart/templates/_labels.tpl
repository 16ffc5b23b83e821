{{/* Labels of a component's objects: include "fenchel.labels" (list . "server") */}}
{{- define "fenchel.labels" -}}
{{- $ := index . 0 -}}
{{ include "fenchel.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
{{- end }}

{{/* Labels by which a component's pods are selected. */}}
{{- define "fenchel.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: fenchel
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}
