"""What tests build, one builder per kind of thing, in the module of its kind.

sites: site files and sites. specs: jobs and their scripts. releases: builds and published releases.
results: verdicts, references, rows of the history, what training leaves. nights: many nights and
their page. studies: small studies and their results. records: TFRecords of images.
"""
